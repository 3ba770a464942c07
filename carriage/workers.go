package carriage

import "sync"

// job is one message's place in the queue for a worker. It is embedded in what
// it is the work of.
type job struct {
	owner interface{ work() }
	next  *job
}

// workers runs jobs on at most limit goroutines. A goroutine lives while there
// are jobs and no longer, so an idle Bridge has none. The lock is held for a few
// instructions at a time.
type workers struct {
	mu         sync.Mutex
	head, tail *job
	queued     int
	running    int
	limit      int
	maxQueue   int
}

// submit has j run soon; false means that the queue is full.
func (w *workers) submit(j *job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running < w.limit {
		w.running++
		go w.run(j)
		return true
	}
	if w.queued >= w.maxQueue {
		return false
	}
	j.next = nil
	if w.tail == nil {
		w.head = j
	} else {
		w.tail.next = j
	}
	w.tail = j
	w.queued++
	return true
}

func (w *workers) run(j *job) {
	done := false
	defer func() {
		// A handler that ends its goroutine must not take the worker's place in
		// the count with it.
		if !done {
			if j = w.take(); j != nil {
				go w.run(j)
			}
		}
	}()
	for ; j != nil; j = w.take() {
		j.owner.work()
	}
	done = true
}

// take returns the next job; nil gives up the goroutine's place.
func (w *workers) take() *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.head
	if j == nil {
		w.running--
		return nil
	}
	w.head = j.next
	if w.head == nil {
		w.tail = nil
	}
	j.next = nil
	w.queued--
	return j
}
