package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// messageLimit is what container runtimes take, in bytes.
const messageLimit = 16 << 20

// instant is a runtime that answers at once and does nothing. It lists its
// pods, so that nobody takes them for gone, and forgets its containers.
type instant struct {
	runtime.UnimplementedRuntimeServiceServer
	runtime.UnimplementedImageServiceServer

	images *runtime.ListImagesResponse

	mutex   sync.Mutex
	next    uint64
	pods    map[string]*runtime.PodSandbox
	parents map[string]string
}

func serve(ctx context.Context, socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	instant := &instant{
		images:  images(),
		pods:    map[string]*runtime.PodSandbox{},
		parents: map[string]string{},
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageLimit), grpc.MaxSendMsgSize(messageLimit))
	runtime.RegisterRuntimeServiceServer(server, instant)
	runtime.RegisterImageServiceServer(server, instant)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	return server.Serve(listener)
}

// images is a list of 1 MiB.
func images() *runtime.ListImagesResponse {
	const count = 1024
	list := &runtime.ListImagesResponse{}
	for i := range count {
		list.Images = append(list.Images, &runtime.Image{
			Id:       fmt.Sprintf("sha256:%064x", i),
			RepoTags: []string{strings.Repeat("t", 1024-79)},
		})
	}
	return list
}

func (s *instant) id() string {
	s.next++
	return fmt.Sprintf("%064x", s.next)
}

func (s *instant) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "0", RuntimeApiVersion: "v1"}, nil
}

func (s *instant) ListImages(context.Context, *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return s.images, nil
}

func (s *instant) RunPodSandbox(_ context.Context, r *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	id := s.id()
	s.pods[id] = &runtime.PodSandbox{
		Id:          id,
		Metadata:    r.Config.GetMetadata(),
		Labels:      r.Config.GetLabels(),
		Annotations: r.Config.GetAnnotations(),
		State:       runtime.PodSandboxState_SANDBOX_READY,
	}
	s.parents[id] = r.Config.GetLinux().GetCgroupParent()
	return &runtime.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (s *instant) RemovePodSandbox(_ context.Context, r *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.pods, r.PodSandboxId)
	delete(s.parents, r.PodSandboxId)
	return &runtime.RemovePodSandboxResponse{}, nil
}

func (s *instant) CreateContainer(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return &runtime.CreateContainerResponse{ContainerId: s.id()}, nil
}

func (s *instant) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	list := &runtime.ListPodSandboxResponse{}
	for _, pod := range s.pods {
		list.Items = append(list.Items, pod)
	}
	return list, nil
}

func (s *instant) ListContainers(context.Context, *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{}, nil
}

func (s *instant) PodSandboxStatus(_ context.Context, r *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	config := fmt.Sprintf(`{"config":{"linux":{"cgroup_parent":%q}}}`, s.parents[r.PodSandboxId])
	return &runtime.PodSandboxStatusResponse{
		Status: &runtime.PodSandboxStatus{Id: r.PodSandboxId},
		Info:   map[string]string{"info": config},
	}, nil
}
