package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

const (
	pods       = 1000
	containers = 5000
)

// runtime is what containerd does with a plugin: it registers one, tells it of
// so many containers that it takes several messages, and creates one.
func runtime(ctx context.Context, socket string) error {
	nowhere, err := os.MkdirTemp("", "nri-end-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(nowhere)
	synchronized := make(chan error, 1)
	var started atomic.Bool
	synchronize := func(ctx context.Context, tell adaptation.SyncCB) error {
		updates, err := tell(ctx, somePods(), someContainers())
		if !started.Load() {
			// The start itself, for the plugins that are installed: none.
			return err
		}
		if err == nil && (len(updates) != 1 || updates[0].ContainerId != "c4999") {
			err = fmt.Errorf("updates: %v", updates)
		}
		synchronized <- err
		return err
	}
	updated := make(chan []*api.ContainerUpdate, 1)
	update := func(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		updated <- updates
		return nil, nil
	}
	// How busy the machine is, is no part of it.
	adaptation.SetPluginRegistrationTimeout(limit)
	adaptation.SetPluginRequestTimeout(limit)
	nri, err := adaptation.New("containerd", "v2.3.0", synchronize, update,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(nowhere),
		adaptation.WithPluginConfigPath(nowhere))
	if err != nil {
		return err
	}
	// Nobody connects before the lock is given up, which is after the start.
	unblock := nri.BlockPluginSync()
	if err := nri.Start(); err != nil {
		return err
	}
	defer nri.Stop()
	started.Store(true)
	unblock.Unblock()
	select {
	case err := <-synchronized:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return errors.New("no plugin came")
	}
	pod := somePods()[0]
	// It is asked some time after it was told of all containers.
	if err := createUntil(ctx, nri, pod, true); err != nil {
		return err
	}
	if err := nri.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}); err != nil {
		return err
	}
	select {
	case updates := <-updated:
		if len(updates) != 1 || updates[0].Linux.Resources.Cpu.Cpus != "0-1" {
			return fmt.Errorf("unsolicited updates: %v", updates)
		}
	case <-ctx.Done():
		return errors.New("no unsolicited update came")
	}
	// It leaves when it has the answer, and creations go on without it.
	return createUntil(ctx, nri, pod, false)
}

// createUntil creates containers until the plugin adjusts one, or does not.
func createUntil(ctx context.Context, nri *adaptation.Adaptation, pod *api.PodSandbox, adjusted bool) error {
	for ctx.Err() == nil {
		response, err := nri.CreateContainer(ctx, &api.CreateContainerRequest{
			Pod:       pod,
			Container: &api.Container{Id: "new", PodSandboxId: pod.Id, Name: "new"},
		})
		if err != nil {
			return err
		}
		cpu := response.Adjust.GetLinux().GetResources().GetCpu()
		shares, quota := cpu.GetShares(), cpu.GetQuota()
		if shares != nil && (shares.Value != 2 || quota.GetValue() != -1) {
			return fmt.Errorf("adjustment: %v", response.Adjust)
		}
		if (shares != nil) == adjusted {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("no creation was adjusted: %v", adjusted)
}

func somePods() []*api.PodSandbox {
	list := make([]*api.PodSandbox, pods)
	for i := range list {
		list[i] = &api.PodSandbox{
			Id:          fmt.Sprintf("p%d", i),
			Uid:         fmt.Sprintf("uid-%d", i),
			Annotations: map[string]string{"filler": strings.Repeat("x", 1000)},
		}
	}
	return list
}

func someContainers() []*api.Container {
	list := make([]*api.Container, containers)
	for i := range list {
		list[i] = &api.Container{
			Id:           fmt.Sprintf("c%d", i),
			PodSandboxId: fmt.Sprintf("p%d", i%pods),
			Env:          []string{"FILLER=" + strings.Repeat("y", 1000)},
		}
	}
	return list
}
