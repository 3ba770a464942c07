package relay

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A page of another site whose name was rebound to this machine reaches the edge
// under that site's name. It is refused as long as
// nobody has to authenticate.
func TestForeignHostNamesAreRefused(t *testing.T) {
	r := startRelay(t, Config{Demo: true})
	_, port, _ := strings.Cut(r.HTTPAddr().String(), ":")
	ask := func(host string) int {
		request, err := http.NewRequestWithContext(t.Context(), "POST", agentURL(r, "echo"), strings.NewReader(sendText("1", "hi")))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		request.Header.Set("Content-Type", "application/json")
		response, err := httpClient.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	for host, want := range map[string]int{
		"evil.example": 421, "evil.example:" + port: 421, "localhost.evil.example:" + port: 421, "192.0.2.1:" + port: 421,
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "[::1]:" + port: 200,
	} {
		if got := ask(host); got != want {
			t.Errorf("POST to %s: %d, want %d", host, got, want)
		}
	}
	if s := r.Stats(); s.Requests != 3 {
		t.Errorf("%d requests were forwarded", s.Requests)
	}
}
