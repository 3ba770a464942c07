// Package sched holds what an event loop needs to order its work: an inbox that
// other goroutines post to, a timing wheel, tables of correlations, a fair queue
// of outbound frames and credit counters.
//
// Nothing here starts a goroutine, reads a clock or takes a lock that a loop
// could wait for. A structure belongs to one loop goroutine; the few methods
// that any goroutine may call say so.
package sched
