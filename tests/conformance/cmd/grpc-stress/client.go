package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"koord/conformance/internal/suite"
)

// client is one connection.
type client struct {
	*grpc.ClientConn
	// patched counts the calls that succeeded with what hooks decided; nil
	// where no hooks lie between.
	patched *atomic.Uint64
}

func dial(socket string, patched *atomic.Uint64) (client, error) {
	conn, err := suite.Dial(socket)
	return client{conn, patched}, err
}

// ask makes one unary call and checks that the reply is the one to it.
func (c client) ask(ctx context.Context, method string, request []byte, size int, options ...grpc.CallOption) error {
	ctx = metadata.AppendToOutgoingContext(ctx, headerReplySize, strconv.Itoa(size))
	reply, err := c.call(ctx, method, request, options...)
	if err != nil {
		return err
	}
	if !isReplyTo(request, reply, size, 0) {
		return fmt.Errorf("the reply to %d bytes is wrong: %d bytes", len(request), len(reply))
	}
	return nil
}

// call makes one unary call, whatever its reply is.
func (c client) call(ctx context.Context, method string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	var reply []byte
	err := c.Invoke(c.announcing(ctx, method, request), method, request, &reply, options...)
	if err == nil && c.isPatched(method, request) {
		c.patched.Add(1)
	}
	return reply, err
}

// isPatched tells whether hooks have to change this request on its way.
func (c client) isPatched(method string, request []byte) bool {
	return c.patched != nil && isDecidedAbout(method, request)
}

// announcing tells the server what is to arrive there.
func (c client) announcing(ctx context.Context, method string, request []byte) context.Context {
	if c.isPatched(method, request) {
		return metadata.AppendToOutgoingContext(ctx, headerDecided, "1")
	}
	return ctx
}

// follow opens a stream of replies and leaves reading to the caller.
func (c client) follow(ctx context.Context, method string, request []byte, headers ...string) (grpc.ClientStream, error) {
	ctx = metadata.AppendToOutgoingContext(c.announcing(ctx, method, request), headers...)
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

// abandoned asks how many calls the server saw being given up.
func (c client) abandoned(ctx context.Context) (uint64, error) {
	_, abandoned, err := c.counters(ctx)
	return abandoned, err
}

// counters asks how many messages have arrived at the server, and how many
// calls it saw being given up.
func (c client) counters(ctx context.Context) (arrived, abandoned uint64, err error) {
	var reply []byte
	if err := c.Invoke(ctx, methodCounters, []byte{}, &reply); err != nil {
		return 0, 0, err
	}
	if len(reply) != 16 {
		return 0, 0, fmt.Errorf("the counters have %d bytes", len(reply))
	}
	return binary.BigEndian.Uint64(reply), binary.BigEndian.Uint64(reply[8:]), nil
}

// awaitAbandoned waits up to a minute for the server to have seen so many more.
func (c client) awaitAbandoned(ctx context.Context, before, more uint64) (uint64, error) {
	deadline := time.Now().Add(time.Minute)
	for {
		now, err := c.abandoned(ctx)
		if err != nil || now-before >= more || time.Now().After(deadline) {
			return now - before, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// message is a protobuf message of about this size that says nothing to any
// hook: one unknown field. Content follows from the seed.
func message(size int, seed uint64) []byte {
	if size < 8 {
		return make([]byte, 0)
	}
	random := rand.New(rand.NewPCG(seed, 1))
	envelope := 2 + protowire.SizeVarint(uint64(size))
	content := make([]byte, size-envelope)
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	out := protowire.AppendTag(nil, 2000, protowire.BytesType)
	return protowire.AppendBytes(out, content)
}

// outcomes counts how calls ended, by status code or by what was wrong.
type outcomes struct {
	mutex  sync.Mutex
	counts map[string]int
}

func (o *outcomes) add(err error) {
	name := status.Code(err).String()
	if _, isStatus := status.FromError(err); err != nil && !isStatus || status.Code(err) == codeWrongArrival {
		name = err.Error()
	}
	o.count(name)
}

func (o *outcomes) count(name string) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.counts == nil {
		o.counts = map[string]int{}
	}
	o.counts[name]++
}

func (o *outcomes) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(o.counts)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, o.counts[name]))
	}
	return strings.Join(parts, ", ")
}

// onlyOK fails where anything but success was counted.
func (o *outcomes) onlyOK() error {
	for name := range o.counts {
		if name != codes.OK.String() {
			return fmt.Errorf("not all calls succeeded: %s", o)
		}
	}
	return nil
}

// each runs count jobs with so many workers.
func each(count, workers int, job func(i int)) {
	next := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range next {
				job(i)
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	group.Wait()
}
