// Package a2asdk holds an end-to-end test alone: client and server of the public
// A2A SDK for Go, as they are released, speak to each other through two trestle
// processes and the one TLS association between them.
//
//	SDK client -- HTTP, SSE --> trestle serve == N-PAMP over TLS == trestle agent -- HTTP, SSE --> SDK server
//
// It is a module of its own, so that the SDK and what it needs are no dependencies
// of Trestle.
package a2asdk
