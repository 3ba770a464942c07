package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"
)

// maxConformFrame bounds one request of the driver. The largest in the public
// corpus are some ten kilooctets.
const maxConformFrame = 64 << 20

func conformCommand() *cli.Command {
	return &cli.Command{
		Name:  "conform",
		Usage: "answer a conformance driver on standard input and output",
		Description: `Speaks the adapter protocol of the public N-PAMP conformance corpus, so that the code
that runs on the wire can be graded by somebody else's driver. Each request is a
little-endian u32 length and that much JSON; so is its answer:

   {"op": NAME, "in": {...}}  ->  {"out": {...}} or {"error": TEXT} or {"skipped": TEXT}

Octets are hex strings. The bodies of the native channels (memory.body.decode and its
like) are skipped, since Trestle carries the Bridge and Discovery channels; everything
else is answered by the packages the engine itself is built from. It ends with the input.

   driver -- trestle conform`,
		Action: func(_ context.Context, cmd *cli.Command) error {
			return serveConform(cmd.Root().Reader, cmd.Root().Writer)
		},
	}
}

// serveConform answers requests from r on w until r ends between two requests.
func serveConform(r io.Reader, w io.Writer) error {
	in := bufio.NewReader(r)
	var request bytes.Buffer
	for {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("conform: reading a length: %w", err)
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n > maxConformFrame {
			return fmt.Errorf("conform: a request of %d octets is over the limit of %d", n, maxConformFrame)
		}
		request.Reset()
		if _, err := io.CopyN(&request, in, int64(n)); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("conform: reading a request: %w", err)
		}
		answer, err := json.Marshal(answerConform(request.Bytes()))
		if err != nil {
			return fmt.Errorf("conform: %w", err)
		}
		if _, err := w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(answer))), answer...)); err != nil {
			return fmt.Errorf("conform: answering: %w", err)
		}
	}
}

// conformAnswer has exactly one of its fields set.
type conformAnswer struct {
	Out     any    `json:"out,omitempty"`
	Error   string `json:"error,omitempty"`
	Skipped string `json:"skipped,omitempty"`
}

func answerConform(request []byte) conformAnswer {
	var q struct {
		Op string          `json:"op"`
		In json.RawMessage `json:"in"`
	}
	if err := json.Unmarshal(request, &q); err != nil {
		return conformAnswer{Error: "conform: " + err.Error()}
	}
	op, known := conformOps[q.Op]
	switch {
	case known:
	case strings.HasSuffix(q.Op, ".body.decode"):
		return conformAnswer{Skipped: "bodies of the native channels are not decoded here"}
	default:
		return conformAnswer{Error: fmt.Sprintf("conform: unknown operation %q", q.Op)}
	}
	out, err := op(q.In)
	if err != nil {
		return conformAnswer{Error: err.Error()}
	}
	return conformAnswer{Out: out}
}

// A conformOp answers one operation. Its errors start with the name of the
// package that found the fault.
type conformOp func(in json.RawMessage) (any, error)

// takes makes an operation of a function that wants its input decoded.
func takes[In, Out any](f func(In) (Out, error)) conformOp {
	return func(raw json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(raw, &in); err != nil {
			return nil, fmt.Errorf("conform: %w", err)
		}
		return f(in)
	}
}

// octets is a byte string, hex in JSON.
type octets []byte

func (o octets) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, o), nil }

func (o *octets) UnmarshalText(text []byte) (err error) {
	*o, err = hex.AppendDecode(nil, text)
	return err
}

// number is an unsigned integer; the corpus writes some as strings, because
// they do not fit a double.
type number uint64

func (n *number) UnmarshalJSON(raw []byte) error {
	text := strings.Trim(string(raw), `"`)
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	*n = number(v)
	return nil
}

var (
	errConformTrailing = errors.New("conform: octets after the end")
	errConformRange    = errors.New("conform: number out of range")
)

// narrow converts a number to a smaller type that must hold it.
func narrow[T ~uint8 | ~uint16 | ~uint32 | ~uint64](n number) (T, error) {
	t := T(n)
	if number(t) != n {
		return 0, errConformRange
	}
	return t, nil
}
