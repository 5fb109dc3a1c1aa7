package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// asked is a plugin that remembers what it was told.
type asked struct {
	pods, containers int
	created          chan string
}

// plugin is what a plugin does that is written with the stub.
func plugin(ctx context.Context, socket string) error {
	it := &asked{created: make(chan string, 1)}
	end, err := stub.New(it,
		stub.WithSocketPath(socket),
		stub.WithPluginName("stub"),
		stub.WithPluginIdx("05"))
	if err != nil {
		return err
	}
	if err := end.Start(ctx); err != nil {
		return err
	}
	select {
	case id := <-it.created:
		if id != "new" || it.pods != 2 || it.containers != 1 {
			return fmt.Errorf("told of %d pods, %d containers, asked for %q", it.pods, it.containers, id)
		}
	case <-ctx.Done():
		return errors.New("nobody asked")
	}
	end.Wait()
	return nil
}

func (it *asked) Configure(_ context.Context, config, runtime, version string) (stub.EventMask, error) {
	if config != "some: text" || runtime != "containerd" || version != "v2.3.0" {
		return 0, fmt.Errorf("configured by %q of %q %q", config, runtime, version)
	}
	return 0, nil
}

func (it *asked) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	it.pods, it.containers = len(pods), len(containers)
	return nil, nil
}

func (it *asked) CreateContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	it.created <- container.Id
	adjust := &api.ContainerAdjustment{}
	adjust.SetLinuxCPUShares(2)
	return adjust, nil, nil
}
