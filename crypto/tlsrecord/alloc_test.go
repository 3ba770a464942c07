package tlsrecord

import (
	"crypto/tls"
	"testing"
	"unsafe"

	"github.com/trestle-npamp/trestle/internal/buf"
)

func TestSteadyTrafficAllocatesNothing(t *testing.T) {
	eachSuite(t, func(t *testing.T, suite uint16) {
		if suite == tls.TLS_CHACHA20_POLY1305_SHA256 && chachaAllocates {
			return
		}
		budget := buf.NewBudget(1 << 20)
		client, server := newPair(t, suite, func(c *Config) { c.Budget = budget })
		data := payload(1, 600)
		room := make([]byte, 0, 200_000)
		poll := func(b []byte, want int) {
			server.HandleBytes(b)
			for {
				p, ok, err := server.Poll()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				want -= len(p)
			}
			server.Settle()
			if want != 0 {
				t.Fatal("octets are missing:", want)
			}
		}
		for name, step := range map[string]func(){
			"one record": func() {
				b, err := client.AppendRecords(room, data)
				if err != nil {
					t.Fatal(err)
				}
				poll(b, len(data))
			},
			"in place": func() {
				b := append(room[:HeaderLen], data...)
				b, err := client.SealBatch(b, 0)
				if err != nil {
					t.Fatal(err)
				}
				poll(b, len(data))
			},
			"several records in place": func() {
				b, err := client.SealBatch(room[:HeaderLen+50_000], 0)
				if err != nil {
					t.Fatal(err)
				}
				poll(b, 50_000)
			},
			"a record over several inputs": func() {
				b, err := client.AppendRecords(room, data)
				if err != nil {
					t.Fatal(err)
				}
				poll(b[:3], 0)
				poll(b[3:300], 0)
				poll(b[300:], len(data))
			},
		} {
			step()
			step()
			if n := testing.AllocsPerRun(100, step); n != 0 && !raceEnabled {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
		// Nor does a refusal: the errors are static.
		bad := make([]byte, 100)
		fresh := make([]*Conn, 101)
		for i := range fresh {
			fresh[i] = mustNew(t, config(suite, true))
		}
		i := 0
		if n := testing.AllocsPerRun(100, func() {
			c := fresh[i]
			i++
			c.HandleBytes(bad)
			if _, _, err := c.Poll(); err != ErrContentType {
				t.Fatal(err)
			}
		}); n > 8 { // erasing a key by reflection takes a few
			t.Errorf("a refusal: %v allocations", n)
		}
	})
}

// What an idle connection keeps: the machine, and no buffer.
func TestIdleConnectionIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Conn{}); n > 512 {
		t.Errorf("a Conn is %d octets", n)
	}
	budget := buf.NewBudget(1 << 20)
	client, server := newPair(t, tls.TLS_AES_128_GCM_SHA256, func(c *Config) { c.Budget = budget })
	b, err := client.AppendRecords(nil, make([]byte, 500_000))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := receive(server, b, 4999); len(got) != 500_000 || err != nil {
		t.Fatal(len(got), err)
	}
	if server.Buffered() != 0 || budget.Used() != 0 || server.in != nil {
		t.Error("a burst left something behind")
	}
	if server.Idle(); server.Expanded() {
		t.Error("keys are left")
	}
}
