// Package bench measures an engine under load: a server and a client, each a
// process of its own, so that what the server costs can be told from what the
// measuring costs.
//
// The server process is told what to do on its standard input and answers on
// its standard output, one line each (see Control): where it listens, and on
// request its CPU time, system calls, allocations, memory and how much it has
// served. A Load drives it through a Target, which is any client of any server:
// our engine's (Engine), or another's (module bench/peers). Loops are closed, with
// a fixed number of requests in flight, or open, with a schedule that does not
// wait. Latencies are kept as histograms, and what a slow server keeps an open
// loop from sending counts as slow too.
//
// A Report says it in a table, as JSON, or as a page with plots.
//
// Numbers of one run compare; those of two machines or two days do not.
package bench
