package registry

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// stand-in for busybox: all that is asked of it here is the list of applets.
const listsApplets = "#!/bin/sh\necho busybox\necho sleep\necho sh\n"

func serve(t *testing.T) *httptest.Server {
	t.Helper()
	busybox := filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(busybox, []byte(listsApplets), 0o700); err != nil {
		t.Fatal(err)
	}
	registry, err := New(busybox)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry)
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, url string) (int, []byte) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body
}

func TestEveryNameCanBePulled(t *testing.T) {
	server := serve(t)
	for _, path := range []string{"/v2/pause/manifests/3.9", "/v2/e2e-test-images/busybox/manifests/1.29-2"} {
		code, body := get(t, server.URL+path)
		if code != http.StatusOK {
			t.Fatalf("%s: %d", path, code)
		}
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		if err := json.Unmarshal(body, &manifest); err != nil {
			t.Fatal(err)
		}
		for _, part := range append(manifest.Layers, manifest.Config) {
			code, blob := get(t, server.URL+"/v2/x/blobs/"+part.Digest)
			if code != http.StatusOK || digestOf(blob) != part.Digest || len(blob) != part.Size {
				t.Errorf("blob %s: %d, %d bytes", part.Digest, code, len(blob))
			}
		}
		if code, again := get(t, server.URL+"/v2/x/manifests/"+digestOf(body)); code != http.StatusOK || string(again) != string(body) {
			t.Errorf("by digest: %d", code)
		}
	}
}

func TestImagesOfDifferentNamesDiffer(t *testing.T) {
	server := serve(t)
	_, one := get(t, server.URL+"/v2/one/manifests/1")
	_, two := get(t, server.URL+"/v2/two/manifests/1")
	if string(one) == string(two) {
		t.Fatal("two names have one image")
	}
}

func TestWhatWasNeverHandedOutIsNotFound(t *testing.T) {
	server := serve(t)
	for _, path := range []string{"/v2/x/blobs/sha256:00", "/v2/x/manifests/sha256:00", "/v1/", "/v2/x"} {
		if code, _ := get(t, server.URL+path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestHostsPointAtTheRegistry(t *testing.T) {
	directory := t.TempDir()
	if err := WriteHosts(directory, "127.0.0.1:5000"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(directory, "registry.k8s.io", "hosts.toml"))
	if err != nil {
		t.Fatal(err)
	}
	wanted := "server = \"http://127.0.0.1:5000\"\n\n[host.\"http://127.0.0.1:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
	if string(content) != wanted {
		t.Fatalf("%s", content)
	}
}
