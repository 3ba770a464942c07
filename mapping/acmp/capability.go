package acmp

import (
	"strconv"
	"time"
)

// Extension is the URI under which a provider's AgentCard declares ACMP.
const Extension = "https://a2agora.org/acmp/v0.1"

// Version is that of ACMP whose messages are known here.
const Version = "0.1.0"

// Capability is what a provider declares.
type Capability struct {
	// OutputStreaming says that it sends streamChunks when asked to.
	OutputStreaming bool
	// Heartbeat is how often it sends heartbeats in a stream, in whole milliseconds;
	// 0 is never.
	Heartbeat time.Duration
	// Required says that it serves nothing but ACMP.
	Required bool
}

// AppendExtension appends the declaration, an element of capabilities.extensions in
// the AgentCard. Input streaming is declared unsupported, since the binding does not
// carry it.
func (c *Capability) AppendExtension(dst []byte) []byte {
	dst = append(dst, `{"uri":"`+Extension+`","description":"ACMP in data parts","required":`...)
	dst = strconv.AppendBool(dst, c.Required)
	dst = append(dst, `,"params":{"version":"`+Version+`","role":"provider","accepts":["`+MethodInvoke+`","`+MethodCancel+`"],"emits":[`...)
	beats := c.Heartbeat >= time.Millisecond
	if c.OutputStreaming {
		dst = append(dst, `"`+MethodStreamChunk+`"`...)
	}
	if beats {
		if c.OutputStreaming {
			dst = append(dst, ',')
		}
		dst = append(dst, `"`+MethodHeartbeat+`"`...)
	}
	dst = append(dst, `],"features":{"output_streaming":`...)
	dst = strconv.AppendBool(dst, c.OutputStreaming)
	dst = append(dst, `,"input_streaming":false`...)
	if beats {
		dst = append(dst, `,"heartbeat_interval_ms":`...)
		dst = strconv.AppendInt(dst, c.Heartbeat.Milliseconds(), 10)
	}
	return append(dst, `}}}`...)
}

// Fail is the error that answers an invoke: a code, and a message for people.
// It has no data but the task's id.
func Fail(id, taskID []byte, code int, message string) Message {
	body := strconv.AppendInt([]byte(`{"code":`), int64(code), 10)
	body = appendString(append(body, `,"message":`...), message)
	if taskID != nil {
		body = append(append(append(body, `,"data":{"task_id":`...), taskID...), '}')
	}
	return Message{Kind: Error, ID: id, TaskID: taskID, Body: append(body, '}'), Code: code}
}
