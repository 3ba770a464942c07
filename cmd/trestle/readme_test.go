package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/engine/loop"
	"github.com/trestle-npamp/trestle/relay"
	"github.com/trestle-npamp/trestle/relay/edge"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire"
)

// The tests here hold README.md to the truth: its programs are the examples, its
// commands have the flags that it gives them, what it says a request is answered
// with is so, and so are its limits.

const moduleRoot = "../.."

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(moduleRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block is a fenced block of code.
type block struct{ language, text string }

var fence = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```$")

// blocks lists the fenced blocks, without the indentation of a list they stand in.
func blocks(text string) []block {
	var list []block
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		list = append(list, block{m[2], strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")[1:]})
	}
	return list
}

func TestReadmeShowsTheExamples(t *testing.T) {
	shown := 0
	for _, b := range blocks(readme(t)) {
		if b.language != "go" {
			continue
		}
		first, program, _ := strings.Cut(b.text, "\n")
		file := strings.TrimPrefix(first, "// ")
		source, err := os.ReadFile(filepath.Join(moduleRoot, filepath.FromSlash(file)))
		if err != nil {
			t.Errorf("a block of Go code does not begin with the file it is from: %v", err)
			continue
		}
		if !strings.HasSuffix(string(source), "\n"+program) {
			t.Errorf("%s does not end with what README.md shows of it", file)
		}
		shown++
	}
	if shown != 2 {
		t.Errorf("%d programs, want 2", shown)
	}
}

func TestReadmeLinksLeadSomewhere(t *testing.T) {
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(readme(t), -1) {
		if _, err := os.Stat(filepath.Join(moduleRoot, filepath.FromSlash(m[1]))); err != nil {
			t.Error(err)
		}
	}
}

// commandLines lists the command lines of the shell blocks, each on one line.
func commandLines(text string) []string {
	var lines []string
	for _, b := range blocks(text) {
		if b.language == "sh" {
			joined := regexp.MustCompile(`\\\n *`).ReplaceAllString(b.text, "")
			lines = append(lines, strings.Split(strings.TrimSpace(joined), "\n")...)
		}
	}
	return lines
}

// program finds our program in a command line, with its words.
var program = regexp.MustCompile(`(?:\./trestle|go run \./cmd/trestle)((?: +[^|)"#>]+)?)`)

func TestReadmeCommandsTakeTheirFlags(t *testing.T) {
	found := map[string]bool{}
	for _, line := range append(commandLines(readme(t)), inline(readme(t))...) {
		for _, m := range program.FindAllStringSubmatch(line, -1) {
			words := strings.Fields(m[1])
			cmd := newRoot()
			for len(words) > 0 && cmd.Command(words[0]) != nil {
				cmd, words = cmd.Command(words[0]), words[1:]
			}
			found[cmd.Name] = true
			for _, word := range words {
				if name, is := strings.CutPrefix(word, "--"); is && !hasFlag(cmd, name) {
					t.Errorf("%q: %s has no flag %s", line, cmd.Name, word)
				}
			}
			if len(words) > 0 && !strings.HasPrefix(words[0], "--") {
				t.Errorf("%q: %s has no command %q", line, cmd.Name, words[0])
			}
		}
	}
	for _, name := range []string{"serve", "agent", "call", "keygen"} {
		if !found[name] {
			t.Errorf("no command line of %s", name)
		}
	}
	// Flags may also be named by themselves.
	for _, m := range regexp.MustCompile("`[^`]*`").FindAllString(readme(t), -1) {
		for _, f := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(m, -1) {
			if !anyHasFlag(newRoot(), f[1]) {
				t.Errorf("%s: no command has this flag", m)
			}
		}
	}
}

// inline turns mentions like `trestle agent --header-file` into command lines.
func inline(text string) []string {
	var lines []string
	for _, m := range regexp.MustCompile("`trestle ([a-z][^`]*)`").FindAllStringSubmatch(text, -1) {
		lines = append(lines, "./trestle "+m[1])
	}
	return lines
}

func hasFlag(cmd *cli.Command, name string) bool {
	flags := append([]cli.Flag{cli.HelpFlag}, cmd.Flags...)
	for _, group := range cmd.MutuallyExclusiveFlags {
		for _, some := range group.Flags {
			flags = append(flags, some...)
		}
	}
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return true
			}
		}
	}
	return false
}

func anyHasFlag(cmd *cli.Command, name string) bool {
	if hasFlag(cmd, name) {
		return true
	}
	for _, sub := range cmd.Commands {
		if anyHasFlag(sub, name) {
			return true
		}
	}
	return false
}

// The request that README.md has a newcomer paste is answered as it says, but
// for the ids, which are random; so is the one that goes without HTTP.
func TestReadmeRequestsAreAnsweredAsItSays(t *testing.T) {
	text := readme(t)
	p := serving(t, start(t, ports()...))
	var answers []string
	for _, b := range blocks(text) {
		if b.language == "json" {
			answers = append(answers, strings.TrimSpace(b.text))
		}
	}
	if len(answers) != 2 {
		t.Fatalf("%d answers, want 2", len(answers))
	}

	var asked []string
	for _, line := range commandLines(text) {
		switch {
		case strings.HasPrefix(line, "curl "):
			m := regexp.MustCompile(`^curl -s (127\.0\.0\.1:7480)(\S+) -H '([^:]+): ([^']+)' -d '([^']+)'$`).FindStringSubmatch(line)
			if m == nil || m[1] != relay.DefaultHTTP {
				t.Fatalf("what does %q ask of whom?", line)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.http+m[2], strings.NewReader(m[5]))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(m[3], m[4])
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("%s, %v: %s", resp.Status, err, answer)
			}
			asked = append(asked, string(answer))
		case strings.HasPrefix(line, "echo "):
			m := regexp.MustCompile(`^echo '([^']+)' \| \./trestle call --to (\S+) --agent mine$`).FindStringSubmatch(line)
			if m == nil || m[2] != relay.DefaultListen {
				t.Fatalf("what does %q ask of whom?", line)
			}
			// mine is the echo agent behind another hop.
			a := start(t, "agent", "--name", "mine", "--to", p.npamp, "--upstream", "http://"+p.http+"/agents/echo")
			if line := a.line(); !readyAgent.MatchString(line) {
				t.Fatalf("%q is no ready line", line)
			}
			r := trestle(t, m[1]+"\n", "call", "--to", p.npamp, "--agent", "mine")
			if r.code != exitForeign || !strings.Contains(text, fmt.Sprintf("exits with %d", r.code)) {
				t.Errorf("exit code %d, stderr %q; README.md says otherwise", r.code, r.err)
			}
			asked = append(asked, r.out)
		}
	}
	ids := regexp.MustCompile(`"[A-Z2-7]{26}"`)
	for i, want := range answers {
		if got := ids.ReplaceAllString(asked[i], "ID"); got != ids.ReplaceAllString(want, "ID") {
			t.Errorf("answered\n%s\nREADME.md says\n%s", asked[i], want)
		}
	}
}

// readmeLimits are the defaults behind the options of README.md's table.
var readmeLimits = map[string]any{
	"engine.Limits.HandshakeTimeout":  loop.DefaultHandshakeTimeout,
	"engine.Limits.PendingHandshakes": loop.DefaultPending,
	"engine.Limits.Associations":      engine.DefaultAssociations,
	"engine.Limits.MaxFrame":          size(wire.DefaultFrameLen),
	"engine.Limits.PingInterval":      conn.DefaultPingInterval,
	"engine.Limits.Stall":             assoc.DefaultStall,
	"engine.Limits.Outbound":          size(assoc.DefaultOutboundLimit),
	"engine.Limits.Budget":            size(engine.DefaultBudget),
	"carriage.Config.MaxInFlight":     carriage.DefaultMaxInFlight,
	"carriage.Config.MaxHeld":         size(carriage.DefaultMaxHeld),
	"carriage.Config.MaxRetained":     size(carriage.DefaultMaxRetained),
	"carriage.Config.ReplyTimeout":    carriage.DefaultReplyTimeout,
	"relay.Config.MaxAgents":          relay.DefaultMaxAgents,
	"relay.Config.MaxNames":           relay.DefaultMaxNames,
	"relay.Config.MaxWaiting":         size(relay.DefaultMaxWaiting),
	"relay.Config.MaxHTTPConns":       relay.DefaultMaxHTTPConns,
	"edge.Config.MaxInFlight":         edge.DefaultMaxInFlight,
	"edge.Config.MaxBody":             size(edge.DefaultMaxBody),
	"edge.Config.MaxBuffered":         size(edge.DefaultMaxBuffered),
	"edge.Config.BodyTimeout":         edge.DefaultBodyTimeout,
	"edge.Config.Timeout":             edge.DefaultTimeout,
	"relay.AgentConfig.MaxRetained":   size(relay.DefaultMaxRetained),
	"upstream.Config.MaxReply":        size(upstream.DefaultMaxReply),
	"upstream.Config.Timeout":         upstream.DefaultTimeout,
}

// readmeConfigs are the types that options mentioned in README.md are fields of.
var readmeConfigs = map[string]reflect.Type{
	"engine.Limits":   reflect.TypeFor[engine.Limits](),
	"carriage.Config": reflect.TypeFor[carriage.Config](),
	"relay.Config":    reflect.TypeFor[relay.Config](),
	"edge.Config":     reflect.TypeFor[edge.Config](),
	"upstream.Config": reflect.TypeFor[upstream.Config](),
}

// size is in octets.
type size int64

// inWords writes a default as README.md does.
func inWords(v any) string {
	switch v := v.(type) {
	case time.Duration:
		if v%time.Minute == 0 {
			return fmt.Sprintf("%d min", v/time.Minute)
		}
		return fmt.Sprintf("%d s", v/time.Second)
	case size:
		if v%(1<<30) == 0 {
			return fmt.Sprintf("%d GiB", v>>30)
		}
		return fmt.Sprintf("%d MiB", v>>20)
	case int:
		s := strconv.Itoa(v)
		if n := len(s); n > 3 {
			s = s[:n-3] + "," + s[n-3:]
		}
		return s
	}
	return "unknown"
}

func TestReadmeLimitsAreTheDefaults(t *testing.T) {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\|[^|]*\\| ([^|]+) \\| `([a-z]+\\.[A-Za-z]+\\.[A-Za-z]+)`[^|]*\\|$").FindAllStringSubmatch(readme(t), -1) {
		limit, option := m[1], m[2]
		v, known := readmeLimits[option]
		if want := inWords(v); !known || limit != want {
			t.Errorf("%s is said to be %s, want %s", option, limit, want)
		}
		found[option] = true
	}
	for option := range readmeLimits {
		if !found[option] {
			t.Errorf("%s is not in the table", option)
		}
	}
}

func TestReadmeOptionsExist(t *testing.T) {
	for _, m := range regexp.MustCompile("`([a-z]+\\.(?:Config|Limits))\\.([A-Za-z]+)`").FindAllStringSubmatch(readme(t), -1) {
		config := readmeConfigs[m[1]]
		if config == nil {
			t.Errorf("%s is not known here", m[1])
			continue
		}
		if _, has := config.FieldByName(m[2]); !has {
			t.Errorf("%s has no field %s", m[1], m[2])
		}
	}
}
