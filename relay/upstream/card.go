package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The well-known places of an agent's card: since A2A 0.3.0, and before.
const (
	CardPath    = "/.well-known/agent-card.json"
	CardPathOld = "/.well-known/agent.json"
)

// CardURLs lists where the card of the agent with the given endpoint is looked
// for, in this order: below the endpoint's own path, where a host that serves
// several agents keeps them apart, and then at the origin; in each place under
// the present name first and then under the one from before A2A 0.3.0.
func CardURLs(endpoint *url.URL) []string {
	var urls []string
	add := func(base string) {
		for _, name := range []string{CardPath, CardPathOld} {
			u := *endpoint
			u.Path, u.RawPath = base+name, ""
			u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = "", false, "", ""
			urls = append(urls, u.String())
		}
	}
	if base := strings.TrimRight(endpoint.Path, "/"); base != "" {
		add(base)
	}
	add("")
	return urls
}

// Card fetches the agent's public card and returns its octets as they were
// served. A place that has no JSON object for us is passed over; when none has,
// the first place's answer is the *Error.
func (c *Client) Card(ctx context.Context) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CardTimeout)
	defer cancel()
	var first *Error
	for _, target := range c.cards {
		card, err := c.get(ctx, target)
		if err == nil {
			return card, nil
		}
		if first == nil {
			first = err
		}
		if err.Status == 0 {
			break // it can't be reached: the next place is on the same host
		}
	}
	return nil, &Error{Status: first.Status, Text: "no agent card: " + first.Text, Cause: first.Cause}
}

func (c *Client) get(ctx context.Context, target string) (*Reply, *Error) {
	response, _, _, err := c.roundTrip(ctx, http.MethodGet, target, media.JSON, nil)
	if err != nil {
		return nil, c.fault(ctx, false, err)
	}
	defer response.Body.Close()
	fail := func(text string, cause error) *Error {
		return &Error{Status: response.StatusCode, Text: text, Cause: cause}
	}
	if response.StatusCode != http.StatusOK {
		return nil, fail(statusText(response.StatusCode), nil)
	}
	if field := response.Header.Get("Content-Type"); !media.IsDocument(field) {
		return nil, fail(statusText(response.StatusCode)+" with a body that is not JSON", nil)
	}
	if !identity(response.Header.Values("Content-Encoding")) {
		return nil, fail(statusText(response.StatusCode)+" with a content encoding that was not asked for", nil)
	}
	card, err := body.Read(response.Body, response.ContentLength, c.cfg.MaxReply, c.budget)
	switch {
	case errors.Is(err, body.ErrTooLarge):
		return nil, fail("the card is over the limit of "+strconv.Itoa(c.cfg.MaxReply)+" octets", nil)
	case errors.Is(err, body.ErrBudget):
		return nil, fail("no memory is left for the card", nil)
	case err != nil:
		return nil, c.fault(ctx, false, err)
	}
	if !isObject(card.Bytes()) {
		card.Release()
		return nil, fail("what is there is not a JSON object", nil)
	}
	return &Reply{Body: card.Bytes(), body: card}, nil
}

// isObject says whether b is one JSON object, with or without white space around.
func isObject(b []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{")) && json.Valid(b)
}

// extendedID is the id of the request that asks for the extended card; nobody
// else sees it.
const extendedID = `"card"`

// ExtendedCard asks the agent for its extended card by the JSON-RPC operation of
// the given name, and returns the result's octets as they stand in the answer.
// An error object of the agent is returned as a Reply with Error set.
func (c *Client) ExtendedCard(ctx context.Context, operation string) (*Reply, error) {
	r := &Request{
		Method: operation,
		ID:     []byte(extendedID),
		Body:   []byte(`{"jsonrpc":"2.0","id":` + extendedID + `,"method":"` + operation + `"}`),
		Effect: bridge.ReadOnly,
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CardTimeout)
	defer cancel()
	reply, err := c.Call(ctx, r)
	if err != nil || reply.Error {
		return reply, err
	}
	var m jsonrpc.Message
	if err := jsonrpc.Scan(reply.Body, &m); err != nil {
		return nil, err
	}
	reply.Body = m.Body
	return reply, nil
}
