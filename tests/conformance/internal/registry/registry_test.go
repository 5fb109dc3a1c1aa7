package registry

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"
)

// stand-in for busybox: all that is asked of it here is the list of applets.
const listsApplets = "#!/bin/sh\necho busybox\necho sleep\necho sh\necho su\n"

func standIn(t *testing.T) string {
	t.Helper()
	busybox := filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(busybox, []byte(listsApplets), 0o700); err != nil {
		t.Fatal(err)
	}
	return busybox
}

func serve(t *testing.T) *httptest.Server {
	t.Helper()
	registry, err := New(standIn(t))
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

// settings of the image that a tag of a repository names.
type settings struct {
	User string
	Cmd  []string
}

func pull(t *testing.T, server *httptest.Server, repository, tag string) (digest string, config settings) {
	t.Helper()
	_, body := get(t, server.URL+"/v2/"+repository+"/manifests/"+tag)
	var manifest struct{ Config descriptor }
	if err := json.Unmarshal(body, &manifest); err != nil {
		t.Fatal(err)
	}
	_, body = get(t, server.URL+"/v2/"+repository+"/blobs/"+manifest.Config.Digest)
	var image struct{ Config settings }
	if err := json.Unmarshal(body, &image); err != nil {
		t.Fatal(err)
	}
	return manifest.Config.Digest, image.Config
}

func TestTagsOfOneRepositoryAreOneImage(t *testing.T) {
	server := serve(t)
	one, _ := pull(t, server, "k8s-staging-cri-tools/test-image-tags", "1")
	two, _ := pull(t, server, "k8s-staging-cri-tools/test-image-tags", "2")
	if one != two {
		t.Errorf("%s and %s", one, two)
	}
}

func TestImagesBringWhatTheirNamesPromise(t *testing.T) {
	server := serve(t)
	sleeps := []string{"/bin/busybox", "sleep", "1000000"}
	serves := func(title, port string) []string { return []string{"/usr/sbin/nginx", title, port} }
	for name, wanted := range map[string]settings{
		"e2e-test-images/busybox":           {"", sleeps},
		"e2e-test-images/nginx":             {"", serves("nginx: master process", "80")},
		"x/hostnet-nginx-" + runtime.GOARCH: {"", serves("nginx: master process", "12003")},
		"e2e-test-images/httpd":             {"", serves("httpd", "80")},
		"e2e-test-images/nonewprivs":        {"", []string{"/usr/bin/nonewprivs"}},
		"x/test-image-user-uid":             {"1002", sleeps},
		"x/test-image-user-username-group":  {"www-data:1004", sleeps},
		"x/test-image-predefined-group":     {"1000", sleeps},
	} {
		if _, config := pull(t, server, name, "1"); !reflect.DeepEqual(config, wanted) {
			t.Errorf("%s: %v, not %v", name, config, wanted)
		}
	}
}

func TestTheLayerHasASetUserIDProgram(t *testing.T) {
	layer, err := layerOf(standIn(t))
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for archive := tar.NewReader(bytes.NewReader(layer)); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := modes[header.Name]; twice {
			t.Errorf("%s is there twice", header.Name)
		}
		modes[header.Name] = header.Mode
	}
	for name, wanted := range map[string]int64{
		"bin/su": 0o4755, "bin/busybox": 0o755, "bin/sleep": 0o777, "usr/sbin/nginx": 0o755, "tmp/": 0o1777,
	} {
		if modes[name] != wanted {
			t.Errorf("%s: %o, not %o", name, modes[name], wanted)
		}
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

func TestATagThatIsMissingIsNotFound(t *testing.T) {
	server := serve(t)
	if code, _ := get(t, server.URL+"/v2/x/manifests/"+Missing); code != http.StatusNotFound {
		t.Errorf("%d", code)
	}
}

func TestPrivateRepositoriesAskForThePassword(t *testing.T) {
	registry, err := Bare()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry)
	t.Cleanup(server.Close)
	asked := func(path, user, password string) int {
		request, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			request.SetBasicAuth(user, password)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	const private = "/v2/private/x/manifests/1"
	for _, one := range []struct {
		path, user, password string
		wanted               int
	}{
		{private, "", "", http.StatusUnauthorized},
		{private, "somebody", "another secret", http.StatusUnauthorized},
		{private, "somebody", "some secret", http.StatusOK},
		{"/v2/public/x/manifests/1", "", "", http.StatusOK},
	} {
		if code := asked(one.path, one.user, one.password); code != one.wanted {
			t.Errorf("%+v: %d", one, code)
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
