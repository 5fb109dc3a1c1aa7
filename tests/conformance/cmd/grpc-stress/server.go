package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/suite"
)

// messageLimit is what container runtimes take, in bytes.
const messageLimit = 16 << 20

// Headers by which the client says what it wants. A call without any is a
// proxy's own, and is answered as an empty container runtime would.
const (
	headerReplySize = "stress-reply-size"
	headerReplies   = "stress-replies"
	headerHold      = "stress-hold"
	headerCode      = "stress-code"
	headerTrailer   = "stress-trailer-size"
	headerGather    = "stress-gather"
	// headerDecided comes with what hooks have to change on its way.
	headerDecided = "stress-decided"
	// nameOfTrailer is what the server calls a trailer that is asked for.
	nameOfTrailer = "stress-trailer"
)

// codeWrongArrival is how the server says that a message is not what was to
// arrive.
const codeWrongArrival = codes.DataLoss

const (
	methodCounters = "/stress.Stress/Counters"
	methodStream   = "/stress.Stress/Stream"
)

// server counts what it saw.
type server struct {
	calls, abandoned atomic.Uint64
	crowd            crowd
}

func serve(ctx context.Context, socket string, age time.Duration) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	state := &server{}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(suite.Raw{}),
		grpc.MaxRecvMsgSize(messageLimit),
		grpc.MaxSendMsgSize(messageLimit),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return state.handle(stream) }),
	}
	if age > 0 {
		options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: age}))
	}
	grpcServer := grpc.NewServer(options...)
	context.AfterFunc(ctx, grpcServer.Stop)
	return grpcServer.Serve(listener)
}

func (s *server) handle(stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch wish := parseWish(stream.Context()); {
	case method == methodCounters:
		return stream.SendMsg(s.counters())
	case wish.stress:
		s.calls.Add(1)
		return s.grant(stream, wish, request)
	default:
		return asRuntime(stream, method)
	}
}

// grant does what the headers ask for. Every reply begins with the checksum of
// the request as it arrived, without what hooks had to decide.
func (s *server) grant(stream grpc.ServerStream, wish wish, request []byte) error {
	if wish.decided > 0 {
		var err error
		if request, err = asSent(request); err != nil {
			return status.Error(codeWrongArrival, err.Error())
		}
	}
	sum := sha256.Sum256(request)
	if wish.gather > 0 {
		if err := s.crowd.await(stream.Context(), wish.gather); err != nil {
			return err
		}
	}
	if wish.trailer > 0 {
		stream.SetTrailer(metadata.Pairs(nameOfTrailer, strings.Repeat("t", wish.trailer)))
	}
	if wish.code != codes.OK {
		return status.Error(wish.code, "as asked for: "+strings.Repeat("m", int(wish.code)*100))
	}
	for i := range wish.replies {
		if err := stream.SendMsg(replyTo(sum, wish.size, i)); err != nil {
			s.abandoned.Add(1)
			return err
		}
	}
	if wish.hold > 0 {
		select {
		case <-stream.Context().Done():
			s.abandoned.Add(1)
			return stream.Context().Err()
		case <-time.After(wish.hold):
		}
	}
	return nil
}

// replyTo makes the reply with this index: the checksum, then content that
// follows from it.
func replyTo(sum [32]byte, size, index int) []byte {
	reply := make([]byte, max(size, len(sum)))
	pattern := append(sum[:], byte(index), byte(index>>8))
	for at := 0; at < len(reply); at += len(pattern) {
		copy(reply[at:], pattern)
	}
	return reply
}

func (s *server) counters() []byte {
	counters := binary.BigEndian.AppendUint64(nil, s.calls.Load())
	return binary.BigEndian.AppendUint64(counters, s.abandoned.Load())
}

// asRuntime answers a proxy that looks for its runtime.
func asRuntime(stream grpc.ServerStream, method string) error {
	switch {
	case strings.HasSuffix(method, "/Version"):
		reply, err := proto.Marshal(&runtime.VersionResponse{
			Version: "0.1.0", RuntimeName: "stress", RuntimeVersion: "v1.0.0", RuntimeApiVersion: "v1",
		})
		if err != nil {
			return err
		}
		return stream.SendMsg(reply)
	case strings.HasSuffix(method, "/GetContainerEvents"):
		<-stream.Context().Done()
		return stream.Context().Err()
	default:
		return stream.SendMsg([]byte{})
	}
}

// wish is what a call asks of the server.
type wish struct {
	stress  bool
	size    int
	replies int
	hold    time.Duration
	code    codes.Code
	trailer int
	gather  int
	decided int
}

func parseWish(ctx context.Context) wish {
	headers, _ := metadata.FromIncomingContext(ctx)
	wish := wish{replies: 1}
	number := func(name string, into *int) {
		for _, value := range headers.Get(name) {
			wish.stress = true
			if parsed, err := strconv.Atoi(value); err == nil {
				*into = parsed
			}
		}
	}
	code, hold := 0, 0
	number(headerReplySize, &wish.size)
	number(headerReplies, &wish.replies)
	number(headerTrailer, &wish.trailer)
	number(headerGather, &wish.gather)
	number(headerDecided, &wish.decided)
	number(headerHold, &hold)
	number(headerCode, &code)
	wish.hold = time.Duration(hold) * time.Millisecond
	wish.code = codes.Code(code)
	return wish
}

// isReplyTo tells whether a reply is the one to this request.
func isReplyTo(request, reply []byte, size, index int) bool {
	return bytes.Equal(reply, replyTo(sha256.Sum256(request), size, index))
}
