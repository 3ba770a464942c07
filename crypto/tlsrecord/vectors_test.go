package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"io"
	"testing"
)

// trace is what follows a published handshake.
type trace struct {
	name                       string
	suite                      uint16
	clientSecret, serverSecret string
	clientKey, clientIV        string
	serverKey, serverIV        string
	fromClient, fromServer     []string // records
	clientSaid, serverSaid     string   // their application data
	clientClosed, serverClosed bool
	ticketsFromServer          uint64
}

// The simple 1-RTT handshake of RFC 8448 section 3, and "The Illustrated TLS 1.3
// Connection" (tls13.xargs.org).
var traces = []trace{
	{
		name:         "RFC 8448 section 3",
		suite:        tls.TLS_AES_128_GCM_SHA256,
		clientSecret: "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5",
		clientKey:    "17422dda596ed5d9acd890e3c63f5051",
		clientIV:     "5b78923dee08579033e523d9",
		serverSecret: "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643",
		serverKey:    "9f02283b6c9c07efc26bb9f2ac92e356",
		serverIV:     "cf782b88dd83549aadf1e984",
		fromClient: []string{
			"1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4",
			"1703030013c9872760655666b74d7ff1153efd6db6d0b0e3",
		},
		fromServer: []string{
			"17030300de3a6b8f90414a97d6959c3487680de5134a2b240e6cffac116e95d41d6af8f6b580dcf3d11d63c758db289a015940252f55713e061dc13e078891a38efbcf5753ad8ef170ad3c7353d16d9da773b9ca7f2b9fa1b6c0d4a3d03f75e09c30ba1e62972ac46f75f7b981be63439b2999ce13064615139891d5e4c5b406f16e3fc181a77ca475840025db2f0a77f81b5ab05b94c01346755f69232c86519d86cbeeac87aac347d143f9605d64f650db4d023e70e952ca49fe5137121c74bc2697687e248746d6df353005f3bce18696129c8153556b3b6c6779b37bf15985684f",
			"17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d",
			"1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9",
		},
		clientSaid:        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031",
		serverSaid:        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031",
		clientClosed:      true,
		serverClosed:      true,
		ticketsFromServer: 1,
	},
	{
		name:         "tls13.xargs.org",
		suite:        tls.TLS_AES_256_GCM_SHA384,
		clientSecret: "9e47af27cb60d818a9ea7d233cb5ed4cc525fcd74614fb24b0ee59acb8e5aa7ff8d88b89792114208fec291a6fa96bad",
		clientKey:    "de2f4c7672723a692319873e5c227606691a32d1c59d8b9f51dbb9352e9ca9cc",
		clientIV:     "bb007956f474b25de902432f",
		serverSecret: "86c967fd7747a36a0685b4ed8d0e6b4c02b4ddaf3cd294aa44e9f6b0183bf911e89a189ba5dfd71fccffb5cc164901f8",
		serverKey:    "01f78623f17e3edcc09e944027ba3218d57c8e0db93cd3ac419309274700ac27",
		serverIV:     "196a750b0c5049c0cc51a541",
		fromClient:   []string{"1703030015828139cb7b73aaabf5b82fbf9a2961bcde10038a32"},
		fromServer: []string{
			"17030300ea382d8c19a47f4e8d9b0c510bc348db2cc99b241cd0d18b31d0ca1ac12dc1e303c58d0c7e9e27294c6b0e3198f7d319eb14622ec48b6ac8f866d7494fa775c880ff43ad4b1af53a03ca197795778fff2ffe1d3b99b34de782a76abfa840e6366cd7349d9bcff641f5e0dff95e40d72e09effe18ee64672cb96005404488ad1896c44a5fd174998e9b0094d8e6d84d2929b7883dc9a3c3c7313a87293f31b61d24d99097c8853bfbeb95d1d01f99ca05b0501859cf6340e8377075970152fa94f5f5be2906e72a15e40836a41f4cd3dbe7d513c16e88611d3eae9338d9db1f91ca3d5842602a610b43a463",
			"17030300ea38adfb1d01fd95a60385e8bbf1fd8dcb46709897e7d674c2f7370ec11d8e33eb4f4fe7f54bf4dc0b92fae7421c33c6453cebc073159610a09740ab2d056f8d51cfa262007d401236dafc2f7292ff0cc886a4ef389f2ced1226c6b4dcf69d994ff9148ef969bc77d9433ab1d3a932542182829f889ad95f04c752f94ace57146a5d84b042bfb3485a64e7e957b08980cd08baf9698b8929986d1174d4aa6dd7a7e8c086052c3c76d81934bdf59b966e392031f3471adebddddbe84fcf1ff408846ae9b28ca4a9e728844a493d80455d6eaff205b40a1ef18574efc0b96ad383afbd8dfc86f8087c1f7dc8",
			"17030300150cda85f1447ae23fa66d56f4c5408482b1b1d4c998",
		},
		clientSaid:        "70696e67",
		serverSaid:        "706f6e67",
		ticketsFromServer: 2,
	},
}

func TestPublishedTraces(t *testing.T) {
	for _, tr := range traces {
		t.Run(tr.name, func(t *testing.T) {
			cc := Config{Suite: tr.suite, Read: Keys{Secret: unhex(t, tr.serverSecret)}, Write: Keys{Secret: unhex(t, tr.clientSecret)}}
			cs := cc
			cs.Server, cs.Read, cs.Write = true, cc.Write, cc.Read

			// Keys and IVs: what the AEAD is made of.
			var keys []string
			cc.AESGCM, cs.AESGCM = keyRecorder(&keys), newAESGCM
			client, server := mustNew(t, cc), mustNew(t, cs)
			if len(keys) != 2 || keys[0] != tr.serverKey || keys[1] != tr.clientKey {
				t.Errorf("keys %v", keys)
			}
			if iv := hex.EncodeToString(client.wr.nonce[:]); iv != tr.clientIV {
				t.Errorf("client IV %s", iv)
			}
			if iv := hex.EncodeToString(client.rd.nonce[:]); iv != tr.serverIV {
				t.Errorf("server IV %s", iv)
			}

			// What each side receives.
			check := func(c *Conn, records []string, want string, closed bool) {
				t.Helper()
				var stream []byte
				for _, r := range records {
					stream = append(stream, unhex(t, r)...)
				}
				got, err := receive(c, stream, 7)
				if !bytes.Equal(got, unhex(t, want)) || closed != (err == io.EOF) || !closed && err != nil {
					t.Errorf("got %x, %v", got, err)
				}
			}
			check(server, tr.fromClient, tr.clientSaid, tr.clientClosed)
			check(client, tr.fromServer, tr.serverSaid, tr.serverClosed)
			if n := client.Stats().TicketsIn; n != tr.ticketsFromServer {
				t.Errorf("%d tickets", n)
			}

			// What each side sends, octet for octet.
			cs.Write.Seq = tr.ticketsFromServer
			client, server = mustNew(t, cc), mustNew(t, cs)
			sends := func(c *Conn, data string, closed bool, records []string) {
				t.Helper()
				b, start := batch(nil, unhex(t, data), 0)
				b, err := c.SealBatch(b, start)
				if err != nil {
					t.Fatal(err)
				}
				if closed {
					b = c.AppendCloseNotify(b)
				}
				var want []byte
				for _, r := range records {
					want = append(want, unhex(t, r)...)
				}
				if !bytes.Equal(b, want) {
					t.Errorf("sent %x, want %x", b, want)
				}
			}
			sends(client, tr.clientSaid, tr.clientClosed, tr.fromClient)
			sends(server, tr.serverSaid, tr.serverClosed, tr.fromServer[tr.ticketsFromServer:])
		})
	}
}
