// Package bench measures an engine under load: a server and a client, each a
// process of its own, so that what the server costs can be told from what the
// measuring costs.
//
// The server process is told what to do on its standard input and answers on
// its standard output, one line each (see Serve): where it listens, and on
// request its CPU time, its allocations and how many requests it has answered.
// The client drives closed loops against it, a fixed number of requests in
// flight on each of a fixed number of associations, and keeps a histogram of
// latencies for each association.
//
// Numbers of one run compare; those of two machines or two days do not.
package bench
