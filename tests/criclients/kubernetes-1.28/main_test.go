package main

import (
	"path/filepath"
	"testing"
	"time"

	"koord/criclients/life/authority"
)

func TestThisClientSendsTheSocketPathAsAuthority(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	sent, err := authority.Sent(socket, func(endpoint string) {
		if client, err := dial(endpoint, 5*time.Second); err == nil {
			// A client that connects lazily speaks only now.
			_, _ = client.Version(t.Context(), "0.1.0")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if wanted := socket; sent != wanted {
		t.Fatalf("sent %q, wanted %q", sent, wanted)
	}
}
