package registry

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// The media types of the one kind of image that is served.
const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor names a blob, as image manifests do.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

func describe(mediaType string, data []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digestOf(data), Size: len(data)}
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// layerOf packs a static busybox with a link for each of its applets and the
// few files that a container expects.
func layerOf(busybox string) ([]byte, error) {
	binary, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	for _, directory := range []string{"bin/", "dev/", "etc/", "home/", "proc/", "root/", "sys/", "tmp/", "usr/", "var/"} {
		if err := archive.WriteHeader(&tar.Header{Name: directory, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":  "root:x:0:\nnobody:x:65534:\n",
	}
	for _, name := range []string{"etc/passwd", "etc/group"} {
		if err := writeFile(archive, name, 0o644, []byte(files[name])); err != nil {
			return nil, err
		}
	}
	if err := writeFile(archive, "bin/busybox", 0o755, binary); err != nil {
		return nil, err
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet == "busybox" {
			continue
		}
		link := &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}
		if err := archive.WriteHeader(link); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), archive.Close()
}

func writeFile(archive *tar.Writer, name string, mode int64, content []byte) error {
	header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// configOf is the image configuration for a name. It holds the name, so that
// images of different names have different ids, as they would have elsewhere.
func configOf(name string, layer descriptor) ([]byte, error) {
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": map[string]any{
			"Env":    []string{"PATH=/bin"},
			"Cmd":    []string{"/bin/busybox", "sleep", "1000000"},
			"Labels": map[string]string{"stands.in.for": name},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
}

func manifestOf(config, layer descriptor) ([]byte, error) {
	return json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     typeManifest,
		"config":        config,
		"layers":        []descriptor{layer},
	})
}
