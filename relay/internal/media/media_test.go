package media

import "testing"

// L36: a media type is parsed, not compared as a string.
func TestContentTypesAreParsed(t *testing.T) {
	for field, want := range map[string]struct{ json, document bool }{
		"application/json":                      {true, true},
		"application/json; charset=utf-8":       {true, true},
		"application/json;charset=UTF-8":        {true, true},
		`application/json; charset="utf-8"`:     {true, true},
		"Application/JSON":                      {true, true},
		" application/json ; foo=bar":           {true, true},
		"application/json;":                     {true, true},
		"application/json; charset=iso-8859-1":  {false, false},
		"application/a2a+json":                  {false, true},
		"application/problem+json":              {false, true},
		"application/x-ndjson":                  {false, false},
		"application/jsonx":                     {false, false},
		"text/event-stream;charset=UTF-8":       {false, false},
		"text/html":                             {false, false},
		"application/json, application/json":    {false, false},
		"application/json; charset=utf-8; q; =": {false, false},
		"json":                                  {false, false},
		"":                                      {false, false},
	} {
		if got := IsJSON(field); got != want.json {
			t.Errorf("IsJSON(%q) = %v", field, got)
		}
		if got := IsDocument(field); got != want.document {
			t.Errorf("IsDocument(%q) = %v", field, got)
		}
	}
	for field, want := range map[string]bool{
		"text/event-stream": true, "text/event-stream;charset=UTF-8": true, "Text/Event-Stream ; charset=\"utf-8\"": true,
		"text/event-stream; charset=latin1": false, "application/json": false, "text/event-streams": false, "": false,
	} {
		if got := IsEventStream(field); got != want {
			t.Errorf("IsEventStream(%q) = %v", field, got)
		}
	}
	for field, want := range map[string]string{
		"Text/Event-Stream; charset=UTF-8": "text/event-stream",
		"text/html; =":                     "text/html",
		"":                                 "",
		"/":                                "",
	} {
		if got := Type(field); got != want {
			t.Errorf("Type(%q) = %q, want %q", field, got, want)
		}
	}
}
