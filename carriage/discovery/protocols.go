package discovery

import (
	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Protocols returns the records that advertise what a Bridge carries, made from
// its own configuration so that no more is advertised than is carried (DISC 5.1).
// Their ids are their protocol ids in one octet, and their revision is 1.
func Protocols(carried ...carriage.Protocol) []disco.Record {
	records := make([]disco.Record, 0, len(carried))
	for i := range carried {
		p := &carried[i]
		r := disco.Record{
			ID: []byte{byte(p.ID)}, Kind: disco.KindProtocol, Revision: 1,
			Protocol: disco.ProtocolBody{ProtocolID: uint8(p.ID), Class: disco.Class(p.Class)},
		}
		if p.Content != 0 {
			r.Protocol.ContentTypes = disco.ListOf(p.Content)
		}
		records = append(records, r)
	}
	return records
}
