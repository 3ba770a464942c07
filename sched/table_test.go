package sched

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"testing"
)

// someCorr is one of few, so that scripts meet the same ones again; some are long.
func someCorr(r *rand.Rand) []byte {
	k := r.IntN(300)
	corr := strconv.AppendInt(nil, int64(k), 10)
	switch k % 5 {
	case 0:
		return append(corr, bytes.Repeat([]byte{'x'}, MaxCorrLen-len(corr))...)
	case 1:
		return append(corr, bytes.Repeat([]byte{'x'}, shortKey-len(corr))...)
	case 2:
		return append(corr, bytes.Repeat([]byte{'x'}, shortKey+1-len(corr))...)
	}
	return corr
}

func checkTable(t *testing.T, table *Table[int], m map[string]int) {
	t.Helper()
	if table.Len() != len(m) {
		t.Fatalf("Len %d, want %d", table.Len(), len(m))
	}
	seen := map[string]bool{}
	for corr, v := range table.Range {
		if want, ok := m[string(corr)]; !ok || want != v || seen[string(corr)] {
			t.Fatalf("Range gave %.10q, %d; want %d, %v, once", corr, v, want, ok)
		}
		seen[string(corr)] = true
	}
	if len(seen) != len(m) {
		t.Fatalf("Range gave %d of %d", len(seen), len(m))
	}
}

func TestTableAgainstAMap(t *testing.T) {
	script(t, 60, func(t *testing.T, r *rand.Rand) {
		limit := r.IntN(250)
		table, m := NewTable[int](limit), map[string]int{}
		inserts := 5
		for step := range 5000 {
			if step%500 == 0 {
				inserts = 2 + r.IntN(7) // waves of growth and of decline
			}
			corr := someCorr(r)
			v, there := m[string(corr)]
			switch op := r.IntN(12); {
			case op < inserts:
				ok := table.Insert(corr, step)
				if ok != (!there && len(m) < limit) {
					t.Fatalf("step %d: Insert is %v; there %v, %d of %d", step, ok, there, len(m), limit)
				}
				if ok {
					m[string(corr)] = step
				}
				for i := range corr { // the table has its own copy
					corr[i] = 0
				}
			case op < 10:
				if got, ok := table.Delete(corr); ok != there || got != v {
					t.Fatalf("step %d: Delete is %d, %v; want %d, %v", step, got, ok, v, there)
				}
				delete(m, string(corr))
			default:
				if got, ok := table.Get(corr); ok != there || got != v {
					t.Fatalf("step %d: Get is %d, %v; want %d, %v", step, got, ok, v, there)
				}
			}
			if table.Full() != (len(m) >= limit) {
				t.Fatalf("step %d: Full is %v with %d of %d", step, table.Full(), len(m), limit)
			}
			if step%100 == 0 {
				table.Trim()
				checkTable(t, table, m)
			}
		}
	})
}

// So many that some share the 32 bits of hash that an entry keeps.
func TestTableManyKeys(t *testing.T) {
	const n = 1 << 18
	table := NewTable[int](n)
	key := func(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) }
	for i := range n {
		if !table.Insert(key(i), i) {
			t.Fatalf("key %d was refused", i)
		}
	}
	if table.Insert(key(n), n) || !table.Full() {
		t.Fatal("took more than its limit")
	}
	for i := 0; i < n; i += 2 {
		if v, ok := table.Delete(key(i)); !ok || v != i {
			t.Fatalf("Delete of %d is %d, %v", i, v, ok)
		}
	}
	for i := range n {
		if v, ok := table.Get(key(i)); ok != (i%2 == 1) || ok && v != i {
			t.Fatalf("Get of %d is %d, %v", i, v, ok)
		}
	}
}

func TestTableRefusesKeysThatAreNone(t *testing.T) {
	table := NewTable[int](4)
	for _, n := range []int{0, MaxCorrLen + 1} {
		corr := make([]byte, n)
		if table.Insert(corr, 1) {
			t.Errorf("took a key of %d octets", n)
		}
		if _, ok := table.Get(corr); ok {
			t.Errorf("has a key of %d octets", n)
		}
		table.Insert([]byte{1}, 1)
		if _, ok := table.Delete(corr); ok {
			t.Errorf("deleted a key of %d octets", n)
		}
	}
}

func TestTableZeroValueIsFull(t *testing.T) {
	var table Table[int]
	if table.Insert([]byte{1}, 1) || !table.Full() || table.Len() != 0 {
		t.Fatal("the zero value took an entry")
	}
	if _, ok := table.Get([]byte{1}); ok {
		t.Fatal("the zero value has an entry")
	}
	if _, ok := table.Delete([]byte{1}); ok {
		t.Fatal("the zero value had an entry")
	}
	NewTable[int](-1).Trim()
}

func TestTableRangeAllowsDeletion(t *testing.T) {
	table := NewTable[int](500)
	for i := range 500 {
		table.Insert(strconv.AppendInt(nil, int64(i), 10), i)
	}
	met := 0
	for corr := range table.Range {
		met++
		if _, ok := table.Delete(append([]byte(nil), corr...)); !ok {
			t.Fatalf("%q is gone already", corr)
		}
	}
	if met != 500 || table.Len() != 0 {
		t.Fatalf("met %d, %d left", met, table.Len())
	}
	for range table.Range {
		t.Fatal("an empty table has an entry")
	}
}

func TestTableRangeStopsEarly(t *testing.T) {
	table := NewTable[int](9)
	for i := range 9 {
		table.Insert([]byte{byte(i)}, i)
	}
	met := 0
	for range table.Range {
		if met++; met == 3 {
			break
		}
	}
	if met != 3 {
		t.Fatalf("met %d", met)
	}
}

func TestTableDropsPointersAndMemory(t *testing.T) {
	table := NewTable[*int](4)
	corr := bytes.Repeat([]byte{7}, MaxCorrLen)
	table.Insert(corr, new(int))
	table.Trim() // not empty: must keep it
	if v, ok := table.Get(corr); !ok || v == nil {
		t.Fatal("Trim lost an entry")
	}
	table.Delete(corr)
	if table.entries[0].value != nil || table.entries[0].long != nil {
		t.Fatal("a free entry keeps pointers")
	}
	table.Trim()
	if table.entries != nil || table.index != nil {
		t.Fatal("an empty table kept memory")
	}
	if !table.Insert(corr, nil) || table.Len() != 1 {
		t.Fatal("a trimmed table takes no entries")
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("\x01a\x01b\x81a\x01a"))
	f.Add([]byte("\x00\x00\xff\x10\x20"))
	f.Fuzz(func(t *testing.T, ops []byte) {
		table, m := NewTable[int](16), map[string]int{}
		for i := 0; i+1 < len(ops); {
			op, n := ops[i], int(ops[i]&0x3f)
			i++
			corr := ops[i:min(i+n, len(ops))]
			i += len(corr)
			v, there := m[string(corr)]
			switch op >> 6 {
			case 0, 1:
				if ok := table.Insert(corr, i); ok != (!there && len(m) < 16 && len(corr) > 0) {
					t.Fatalf("Insert(%q) is %v", corr, ok)
				} else if ok {
					m[string(corr)] = i
				}
			case 2:
				if got, ok := table.Delete(corr); ok != there || got != v {
					t.Fatalf("Delete(%q) is %d, %v", corr, got, ok)
				}
				delete(m, string(corr))
			default:
				if got, ok := table.Get(corr); ok != there || got != v {
					t.Fatalf("Get(%q) is %d, %v", corr, got, ok)
				}
			}
		}
		checkTable(t, table, m)
	})
}

func TestTableAllocatesNothing(t *testing.T) {
	table := NewTable[int](64)
	for i := range 20 {
		table.Insert([]byte{byte(i)}, i)
	}
	short, long := []byte(`"2f1d7e0a-9e3c-4b7a-8f60-6b1f7f0d2c11"`), bytes.Repeat([]byte{'x'}, MaxCorrLen)
	noAllocs(t, func() {
		table.Insert(short, 1)
		table.Get(short)
		table.Delete(short)
	})
	if poolsLose {
		return
	}
	noAllocs(t, func() {
		table.Insert(long, 1)
		table.Get(long)
		table.Delete(long)
	})
}
