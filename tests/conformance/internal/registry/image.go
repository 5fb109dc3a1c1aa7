package registry

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
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

// nginx stands in for a web server that says its name: its title is the first argument, the port
// the second.
const nginx = `#!/bin/sh
echo "$1, port $2"
echo $$ >/var/run/nginx.pid
httpd -h /var/www -p "$2"
trap 'exit 0' QUIT TERM
while :; do sleep 3600 & wait $!; done
`

// nonewprivs says as whom a set-user-ID program runs. su is one, and refuses to be none; by its name
// alone a shell of busybox would run its own.
const nonewprivs = `#!/bin/sh
say='echo "Effective uid: $(id -u)"'
/bin/su -c "$say" root 2>/dev/null || eval "$say"
`

// pgrep and ipcs are not among the applets of every busybox.
const (
	pgrep = `#!/bin/sh
exec pidof "$1"
`
	ipcs = `#!/bin/sh
exec cat /proc/sysvipc/shm
`
)

// files are what a container expects beside busybox. The passwords are empty: su has nobody to ask.
var files = []struct {
	name    string
	mode    int64
	content string
}{
	{"etc/passwd", 0o644, "root::0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n" +
		"default-user:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
	{"etc/group", 0o644, "root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\n" +
		"group-defined-in-image:x:50000:default-user\nnobody:x:65534:\n"},
	{"usr/bin/pgrep", 0o755, pgrep},
	{"usr/bin/ipcs", 0o755, ipcs},
	{"usr/sbin/nginx", 0o755, nginx},
	{"usr/bin/nonewprivs", 0o755, nonewprivs},
	{"var/www/index.html", 0o644, "stands in for a web server\n"},
}

// layerOf packs a static busybox with a link for each of its applets, a set-user-ID copy as su, and
// the files.
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
	for _, directory := range []string{"bin/", "dev/", "etc/", "home/", "proc/", "root/", "sys/", "tmp/",
		"usr/", "usr/bin/", "usr/sbin/", "var/", "var/run/", "var/www/"} {
		mode := int64(0o755)
		if directory == "tmp/" {
			mode = 0o1777
		}
		if err := archive.WriteHeader(&tar.Header{Name: directory, Typeflag: tar.TypeDir, Mode: mode}); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		if err := writeFile(archive, file.name, file.mode, []byte(file.content)); err != nil {
			return nil, err
		}
	}
	if err := writeFile(archive, "bin/busybox", 0o755, binary); err != nil {
		return nil, err
	}
	if err := writeFile(archive, "bin/su", 0o4755, binary); err != nil {
		return nil, err
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet == "busybox" || applet == "su" {
			continue
		}
		link := &tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}
		if err := archive.WriteHeader(link); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), archive.Close()
}

// bareLayer packs one small file.
func bareLayer() ([]byte, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	if err := writeFile(archive, "content", 0o644, []byte("of an image that was pulled\n")); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

func writeFile(archive *tar.Writer, name string, mode int64, content []byte) error {
	header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// special is what an image is expected to bring, by the last part of its name. Other images sleep as
// root.
var special = map[string]struct {
	user    string
	command []string
}{
	"nginx":                          {command: []string{"/usr/sbin/nginx", "nginx: master process", "80"}},
	"httpd":                          {command: []string{"/usr/sbin/nginx", "httpd", "80"}},
	"hostnet-nginx":                  {command: []string{"/usr/sbin/nginx", "nginx: master process", "12003"}},
	"nonewprivs":                     {command: []string{"/usr/bin/nonewprivs"}},
	"test-image-user-uid":            {user: "1002"},
	"test-image-user-username":       {user: "www-data"},
	"test-image-user-uid-group":      {user: "1003:1004"},
	"test-image-user-username-group": {user: "www-data:1004"},
	"test-image-predefined-group":    {user: "1000"},
}

// configOf is the image configuration for a repository. It holds the name, so that images of
// different repositories have different ids, as they would have elsewhere; the tags of one are one
// image.
func configOf(repository string, layer descriptor) ([]byte, error) {
	name := strings.TrimSuffix(path.Base(repository), "-"+runtime.GOARCH)
	image := special[name]
	if image.command == nil {
		image.command = []string{"/bin/busybox", "sleep", "1000000"}
	}
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": map[string]any{
			"Env":    []string{"PATH=/bin:/usr/bin:/usr/sbin"},
			"User":   image.user,
			"Cmd":    image.command,
			"Labels": map[string]string{"stands.in.for": repository},
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
