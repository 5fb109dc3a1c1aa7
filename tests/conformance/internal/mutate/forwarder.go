package mutate

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/suite"
)

// Forwarder passes every gRPC call on to another socket. It is a proxy that
// alters the replies that it is told to, and is otherwise as honest as the
// library allows.
type Forwarder struct {
	server  *grpc.Server
	backend *grpc.ClientConn
	alter   Alter
}

// Alter may replace the reply with this index of the named step, as the suite
// records it.
type Alter func(step, method string, index int, data []byte) ([]byte, bool)

// NewForwarder serves socket until Close.
func NewForwarder(socket, backend string, alter Alter) (*Forwarder, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	conn, err := suite.Dial(backend)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	const unlimited = 1 << 30
	forwarder := &Forwarder{backend: conn, alter: alter}
	forwarder.server = grpc.NewServer(
		grpc.ForceServerCodecV2(suite.Raw{}),
		grpc.MaxRecvMsgSize(unlimited),
		grpc.MaxSendMsgSize(unlimited),
		grpc.StatsHandler(compression{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return forwarder.handle(stream) }),
	)
	go func() { _ = forwarder.server.Serve(listener) }()
	return forwarder, nil
}

// Close ends all calls.
func (f *Forwarder) Close() error {
	f.server.Stop()
	return f.backend.Close()
}

func (f *Forwarder) handle(client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	incoming, _ := metadata.FromIncomingContext(client.Context())
	var request []byte
	if err := client.RecvMsg(&request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), forwardable(incoming)))
	defer cancel()
	var options []grpc.CallOption
	if name := compressorOf(client.Context()); name != "" {
		options = append(options, grpc.UseCompressor(name))
	}
	backend, err := f.backend.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, options...)
	if err != nil {
		return err
	}
	// An error of sending is io.EOF; the reason comes with the first receive.
	if err := backend.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := backend.CloseSend(); err != nil {
		return err
	}
	step := strings.Join(incoming.Get(suite.StepHeader), "")
	return f.replies(step, method, backend, client)
}

func (f *Forwarder) replies(step, method string, backend grpc.ClientStream, client grpc.ServerStream) error {
	// Until a marker has ended, the suite takes events off the stream.
	isRecorded := method != runtime.RuntimeService_GetContainerEvents_FullMethodName
	index := 0
	for isFirst := true; ; isFirst = false {
		var reply []byte
		err := backend.RecvMsg(&reply)
		if isFirst {
			if header, headerErr := backend.Header(); headerErr == nil {
				_ = client.SetHeader(forwardable(header))
			}
		}
		if err != nil {
			client.SetTrailer(backend.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if !isRecorded {
			isRecorded = suite.EndsMarker(reply)
		} else {
			if altered, ok := f.alter(step, method, index, reply); ok {
				reply = altered
			}
			index++
		}
		if err := client.SendMsg(reply); err != nil {
			return err
		}
	}
}

// forwardable leaves out what the library sets by itself.
func forwardable(all metadata.MD) metadata.MD {
	kept := metadata.MD{}
	for name, values := range all {
		if strings.HasPrefix(name, ":") || strings.HasPrefix(name, "grpc-") ||
			name == "content-type" || name == "user-agent" {
			continue
		}
		kept[name] = values
	}
	return kept
}

// compression remembers how a request was compressed.
type compression struct{}

type compressionKey struct{}

// TagRPC makes room for the name of the compressor.
func (compression) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, compressionKey{}, new(atomic.Value))
}

// HandleRPC notes the compressor of the request.
func (compression) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if header, ok := event.(*stats.InHeader); ok && header.Compression != "" {
		ctx.Value(compressionKey{}).(*atomic.Value).Store(header.Compression)
	}
}

// TagConn leaves the connection as it is.
func (compression) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (compression) HandleConn(context.Context, stats.ConnStats) {}

func compressorOf(ctx context.Context) string {
	holder, ok := ctx.Value(compressionKey{}).(*atomic.Value)
	if !ok {
		return ""
	}
	name, _ := holder.Load().(string)
	return name
}
