package carriage

import (
	"context"
	"time"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The defaults of TopicOptions.
const (
	// DefaultTopicBuffer is how far a subscriber may fall behind, in octets.
	DefaultTopicBuffer = 1 << 20
	// DefaultPatience is how long Publish waits for a subscriber without progress.
	DefaultPatience = time.Second
)

// TopicOptions make a Topic. Zero values take their defaults.
type TopicOptions struct {
	// Buffer is how many octets of events are kept, and so how far a subscriber may
	// fall behind.
	Buffer int
	// Patience is how long Publish waits for a subscriber that has fallen behind by
	// Buffer and makes no progress.
	Patience time.Duration
}

// Topic sends each event to any number of streams of any associations. The event's
// octets are held once, whatever the number of subscribers, who have each their own
// place and bound: one that falls behind further than it may is cut with
// NotDelivered, and no other notices. Any goroutine may use a Topic.
type Topic struct{}

// NewTopic makes a Topic.
func NewTopic(o TopicOptions) *Topic { return new(Topic) }

// SubscribeOptions are for one subscriber of a Topic.
type SubscribeOptions struct {
	// First, if set, is sent to this subscriber before the topic's events.
	First []byte
	// Resumable lets the subscriber continue after its association was lost, from
	// what the topic still keeps.
	Resumable bool
	// Over is as in StreamOptions.
	Over func(err error)
}

// Subscribe answers r with the topic's events from now on. The topic takes care of
// the request; r need not be retained. The Producer ends this subscriber's stream
// alone; its sending methods return ErrNotSubscribed. Errors are Request.Stream's,
// and ErrStreamEnded if the topic has ended.
func (t *Topic) Subscribe(r *Request, o SubscribeOptions) (*Producer, error) {
	return nil, ErrStreamEnded
}

// Publish sends foreign to all subscribers. While some of them are behind by the
// topic's Buffer it waits; those that make no progress for Patience are cut. ctx
// bounds the wait. foreign may be reused afterwards. Any goroutine but a loop may
// call it.
func (t *Topic) Publish(ctx context.Context, foreign []byte) error { return ErrStreamEnded }

// TryPublish is Publish without waiting: who is behind by the topic's Buffer is cut.
func (t *Topic) TryPublish(foreign []byte) error { return ErrStreamEnded }

// End ends all streams with a terminal event, after what was published before;
// empty foreign stands for an end without an event.
func (t *Topic) End(foreign []byte) error { return ErrStreamEnded }

// Fail ends all streams with the foreign protocol's own error.
func (t *Topic) Fail(foreign []byte) error { return ErrStreamEnded }

// Refuse ends all streams with a transport error.
func (t *Topic) Refuse(code bridge.Code, text string) error { return ErrStreamEnded }

// Subscribers is the number of streams that the topic feeds.
func (t *Topic) Subscribers() int { return 0 }
