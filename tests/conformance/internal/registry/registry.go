// Package registry serves one busybox image under every name that is asked
// for, so that a suite that pulls from public registries can run where none is
// within reach.
package registry

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// StandsInFor are the registries that a conformance suite pulls from.
var StandsInFor = []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io"}

// Private is how names of repositories begin that only User with Password may pull from.
const (
	Private  = "private/"
	User     = "somebody"
	Password = "some secret"
)

// Missing is the one tag that no repository has.
const Missing = "missing"

// Registry is the read side of a container registry.
type Registry struct {
	layer descriptor

	mutex sync.Mutex
	// blobs by digest; manifests are in it as well.
	blobs map[string]blob
}

type blob struct {
	mediaType string
	data      []byte
}

// New makes a registry that serves a static busybox.
func New(busybox string) (*Registry, error) {
	layer, err := layerOf(busybox)
	if err != nil {
		return nil, err
	}
	return serving(layer), nil
}

// Bare makes a registry whose images hold one small file: there is nothing in
// them to run.
func Bare() (*Registry, error) {
	layer, err := bareLayer()
	if err != nil {
		return nil, err
	}
	return serving(layer), nil
}

func serving(layer []byte) *Registry {
	described := describe(typeLayer, layer)
	return &Registry{
		layer: described,
		blobs: map[string]blob{described.Digest: {mediaType: typeLayer, data: layer}},
	}
}

// ServeHTTP answers what a pull asks: /v2/, /v2/NAME/manifests/REFERENCE and
// /v2/NAME/blobs/DIGEST. A digest that was never handed out is not found, nor
// is the tag Missing of any repository.
func (r *Registry) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	path, ok := strings.CutPrefix(request.URL.Path, "/v2/")
	if !ok || (request.Method != http.MethodGet && request.Method != http.MethodHead) {
		http.NotFound(answer, request)
		return
	}
	if path == "" {
		// CRI-O asks here, and nowhere else, whether names and passwords are known at all.
		askPassword(answer)
		return
	}
	parts := strings.Split(path, "/")
	if len(parts) < 3 {
		http.NotFound(answer, request)
		return
	}
	name, kind, reference := strings.Join(parts[:len(parts)-2], "/"), parts[len(parts)-2], parts[len(parts)-1]
	if strings.HasPrefix(name, Private) && !isAllowed(request) {
		askPassword(answer)
		return
	}
	found, err := r.find(name, kind, reference)
	if err != nil {
		http.Error(answer, err.Error(), http.StatusInternalServerError)
		return
	}
	if found == nil {
		http.NotFound(answer, request)
		return
	}
	answer.Header().Set("Content-Type", found.mediaType)
	answer.Header().Set("Content-Length", fmt.Sprint(len(found.data)))
	answer.Header().Set("Docker-Content-Digest", digestOf(found.data))
	if request.Method == http.MethodGet {
		_, _ = answer.Write(found.data)
	}
}

func askPassword(answer http.ResponseWriter) {
	answer.Header().Set("WWW-Authenticate", `Basic realm="private"`)
	http.Error(answer, "only with the password", http.StatusUnauthorized)
}

func isAllowed(request *http.Request) bool {
	user, password, ok := request.BasicAuth()
	return ok && user == User && password == Password
}

func (r *Registry) find(name, kind, reference string) (*blob, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if kind == "manifests" && reference == Missing {
		return nil, nil
	}
	if kind == "manifests" && !strings.HasPrefix(reference, "sha256:") {
		return r.manifest(name)
	}
	if found, ok := r.blobs[reference]; ok {
		return &found, nil
	}
	return nil, nil
}

func (r *Registry) manifest(repository string) (*blob, error) {
	config, err := configOf(repository, r.layer)
	if err != nil {
		return nil, err
	}
	configDescriptor := describe(typeConfig, config)
	manifest, err := manifestOf(configDescriptor, r.layer)
	if err != nil {
		return nil, err
	}
	found := blob{mediaType: typeManifest, data: manifest}
	r.blobs[configDescriptor.Digest] = blob{mediaType: typeConfig, data: config}
	r.blobs[digestOf(manifest)] = found
	return &found, nil
}

// WriteHosts writes a hosts.toml for each registry that is stood in for, into
// the directory that containerd's config_path names.
func WriteHosts(directory, address string) error {
	content := fmt.Sprintf("server = \"http://%[1]s\"\n\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", address)
	for _, host := range StandsInFor {
		if err := os.MkdirAll(filepath.Join(directory, host), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, host, "hosts.toml"), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
