package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"koord/conformance/internal/suite"
)

// load is what is measured.
type load struct {
	socket, method string
	message        []byte
	callers, calls int
}

// figures are all latencies, and how long the whole took.
type figures struct {
	LatenciesNs []int64 `json:"latencies_ns"`
	ElapsedNs   int64   `json:"elapsed_ns"`
}

// call runs the load once every caller is connected, and prints the figures.
func call(ctx context.Context, load load, out io.Writer) error {
	each := load.calls / load.callers
	connections := make([]*grpc.ClientConn, load.callers)
	for i := range connections {
		connection, err := suite.Dial(load.socket)
		if err != nil {
			return err
		}
		defer connection.Close()
		connections[i] = connection
		// The first call connects.
		if err := once(ctx, connection, "/runtime.v1.RuntimeService/Version", nil); err != nil {
			return err
		}
	}
	latencies := make([]int64, each*load.callers)
	failures := make([]error, load.callers)
	var group sync.WaitGroup
	begun := time.Now()
	for i, connection := range connections {
		group.Go(func() {
			failures[i] = repeat(ctx, connection, load, latencies[i*each:(i+1)*each])
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(figures{latencies, time.Since(begun).Nanoseconds()})
}

// repeat makes one call after the other, and notes how long each took.
func repeat(ctx context.Context, connection *grpc.ClientConn, load load, latencies []int64) error {
	for i := range latencies {
		start := time.Now()
		if err := once(ctx, connection, load.method, load.message); err != nil {
			return err
		}
		latencies[i] = time.Since(start).Nanoseconds()
	}
	return nil
}

func once(ctx context.Context, connection *grpc.ClientConn, method string, message []byte) error {
	var reply []byte
	return connection.Invoke(ctx, method, message, &reply)
}
