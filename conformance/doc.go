// Package conformance runs recorded exchanges that prove clauses of the N-PAMP
// documents: scripts that a person can read, with the octets of every frame beside
// what they mean.
//
// A script says what it proves, which side is under test, and then step by step what
// happens:
//
//	# BRIDGE 1: the foreign message is carried octet for octet.
//	clause BRIDGE 9(1)
//	tests responder
//	carries A2A
//
//	peer sends REQUEST on Bridge             | 000d0100
//	  envelope                               | 00100014
//	  protocol A2A                           | 02
//	  kind request                           | 01
//	  content json                           | 01
//	  flags none                             | 00
//	  corr `7`                               | 0137
//	  method `tasks/get`                     | 09746173 6b732f67 6574
//	  foreign `{"jsonrpc":"2.0","id":7,...}` | 7b226a73 6f6e7270 ...
//
//	app sees request
//	  method `tasks/get`
//	  effect read_only
//
//	app responds
//	  foreign `{"jsonrpc":"2.0","id":7,"result":{}}`
//
//	peer receives RESPONSE on Bridge         | 000d0101
//	  ...
//
// A peer sends and receives frames without any rules; app is the application on the
// side under test. What stands right of a | are the octets of the field in
// hexadecimal, which Parse compares with the field, and a run with what is really
// sent. Texts are `raw`, "quoted as in Go" or h'hexadecimal'; several are joined, and
// repeated foreign fields too. A <name> is eight octets that only a run knows, a *
// whatever follows. "as N" puts a false length in front of a field or TLV.
//
// A Backend plays a script: this package's tests the pure machines over a simulated
// link, a Program the trestle binary over a real one. A script that can't be run on
// one of them says why. The grammar is in the tables of script.go and field.go.
package conformance
