package suite

import (
	"net"
	"net/http"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/registry"
)

const (
	methodPull        = runtime.ImageService_PullImage_FullMethodName
	methodImageStatus = runtime.ImageService_ImageStatus_FullMethodName
	methodRemoveImage = runtime.ImageService_RemoveImage_FullMethodName
)

// pulls fetches images from a registry on loopback, which every runtime speaks
// plain HTTP with, looks at what has come, and removes it again.
func pulls(s *Scenario) {
	address, stop := s.serveImages()
	defer stop()
	repository := address + "/conformance/pulled"
	tagged := repository + ":1"
	list := func(step string) { s.Call(step, methodImages, &runtime.ListImagesRequest{}, Required()) }

	s.imageStatus("status-before", tagged)
	pulled := s.pull("pull", tagged, nil, Required())
	s.imageStatus("status", tagged)
	s.Call("status-verbose", methodImageStatus, &runtime.ImageStatusRequest{
		Image: &runtime.ImageSpec{Image: tagged}, Verbose: true,
	})
	s.imageStatus("status-by-id", pulled)
	list("list")
	filter := &runtime.ImageFilter{Image: &runtime.ImageSpec{Image: tagged}}
	s.Call("list-filtered", methodImages, &runtime.ListImagesRequest{Filter: filter})
	s.Stream("stream", runtime.ImageService_StreamImages_FullMethodName, &runtime.StreamImagesRequest{}, nil)
	s.pull("pull-again", tagged, nil, Required())
	s.pull("pull-other-tag", repository+":2", nil, Required())
	s.pull("pull-by-digest", s.digestOf(tagged), nil, Required())
	list("list-tags")

	pod := s.RunPod("run", &Pod{Name: "pod"})
	container := &Container{Name: "main", Image: tagged}
	// There is no program in the image: containerd finds that at the start, CRI-O here.
	container.created(s.Call("create", methodCreate, s.createRequest(pod, container)))
	s.Status("container-status", container)
	s.Remove("remove-container", container)

	s.removeImage("remove", tagged)
	s.imageStatus("status-removed", tagged)
	s.imageStatus("status-other-tag", repository+":2")
	s.removeImage("remove-again", tagged)
	s.removeImage("remove-by-id", pulled)
	// With CRI-O what a pull answers is a name of its own, and the other tag is left.
	s.removeImage("remove-other-tag", repository+":2")
	list("list-removed")
	gone := &Container{Name: "gone", Image: tagged}
	gone.created(s.Call("create-of-removed", methodCreate, s.createRequest(pod, gone)))

	s.pull("pull-missing", repository+":"+registry.Missing, nil)
	private := address + "/" + registry.Private + "pulled:1"
	s.pull("pull-private-without-password", private, nil)
	s.pull("pull-private-with-wrong-password", private, &runtime.AuthConfig{Username: registry.User, Password: "wrong"})
	s.pull("pull-private", private, &runtime.AuthConfig{Username: registry.User, Password: registry.Password}, Required())
	s.imageStatus("status-private", private)
	s.removeImage("remove-private", private)
	list("list-after")
}

// serveImages answers where images are to be had until stop is called.
func (s *Scenario) serveImages() (address string, stop func()) {
	images, err := registry.Bare()
	if err != nil {
		panic("an image of ours cannot be packed: " + err.Error())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("no port on loopback: " + err.Error())
	}
	server := &http.Server{Handler: images}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String(), func() { _ = server.Close() }
}

// pull fetches an image and returns its id.
func (s *Scenario) pull(step, image string, auth *runtime.AuthConfig, options ...Option) string {
	reply := s.Call(step, methodPull, &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: image}, Auth: auth}, options...)
	answer := &runtime.PullImageResponse{}
	into(reply, answer)
	return answer.ImageRef
}

func (s *Scenario) imageStatus(step, image string) {
	s.Call(step, methodImageStatus, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: image}})
}

// removeImage removes an image; the step is required to succeed, as it does
// where there is none of that name.
func (s *Scenario) removeImage(step, image string) {
	s.Call(step, methodRemoveImage, &runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: image}}, Required())
}

// digestOf is the name by which an image that is there stays the same one.
func (s *Scenario) digestOf(image string) string {
	answer := &runtime.ImageStatusResponse{}
	request := &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: image}}
	if s.suite.quietly(s.ctx, methodImageStatus, request, answer) != nil || len(answer.GetImage().GetRepoDigests()) == 0 {
		return image
	}
	return answer.Image.RepoDigests[0]
}
