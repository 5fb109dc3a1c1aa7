package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"koord/conformance/internal/transcript"
)

// maxMessage is the largest reply in bytes that we take: twice a runtime's
// limit, so that the runtime's own limit is the one that is met.
const maxMessage = 32 << 20

// callTimeout bounds every call that does not set its own limit.
const callTimeout = 30 * time.Second

// StepHeader carries "scenario/step" on every recorded call. It lets a proxy
// under test, or the one that alters replies, know which call it sees.
const StepHeader = "conformance-step"

// Raw passes messages as the bytes they are.
type Raw struct{}

// Name is the content subtype, of which the CRI's clients say none: CRI-O takes no other for gRPC.
func (Raw) Name() string { return "" }

// Marshal takes a []byte.
func (Raw) Marshal(value any) (mem.BufferSlice, error) {
	data, ok := value.([]byte)
	if !ok {
		return nil, fmt.Errorf("raw codec: cannot send %T", value)
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

// Unmarshal fills a *[]byte.
func (Raw) Unmarshal(data mem.BufferSlice, value any) error {
	out, ok := value.(*[]byte)
	if !ok {
		return fmt.Errorf("raw codec: cannot receive into %T", value)
	}
	*out = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = Raw{}

// Dial opens a connection to a unix socket that carries raw messages.
func Dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// As the kubelet's client does from 1.31 on.
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(Raw{}),
			grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage),
		))
}

// call is one request on its way, with the options that the scenario gave it.
type call struct {
	method      string
	request     []byte
	timeout     time.Duration
	cancelAfter time.Duration
	compressed  bool
	stream      bool
	enough      func(replies [][]byte) bool
	until       func(*Reply) bool
	untilLimit  time.Duration
	codeOnly    bool
	required    bool
}

// Option changes how one call is made.
type Option func(*call)

// Within sets the deadline that is sent along.
func Within(limit time.Duration) Option { return func(c *call) { c.timeout = limit } }

// CancelAfter gives the call up after a while.
func CancelAfter(wait time.Duration) Option { return func(c *call) { c.cancelAfter = wait } }

// Compressed sends the request with gzip.
func Compressed() Option { return func(c *call) { c.compressed = true } }

// Required marks a call without whose success the run means nothing.
func Required() Option { return func(c *call) { c.required = true } }

// CodeOnly records the status code alone, for calls that the client itself
// ends: who is first to put it into words, client or server, is chance.
func CodeOnly() Option { return func(c *call) { c.codeOnly = true } }

// Until repeats the call, recording only the last, until the reply is as it
// should be or the limit has passed.
func Until(limit time.Duration, done func(*Reply) bool) Option {
	return func(c *call) { c.untilLimit, c.until = limit, done }
}

// Reply is what came back.
type Reply struct {
	Messages [][]byte
	Header   metadata.MD
	Trailer  metadata.MD
	Err      error
}

// Bytes is the reply of a unary call, nil after an error.
func (r *Reply) Bytes() []byte {
	if len(r.Messages) == 0 {
		return nil
	}
	return r.Messages[0]
}

// OK tells whether the call succeeded.
func (r *Reply) OK() bool { return r.Err == nil }

// Code is the gRPC status.
func (r *Reply) Code() codes.Code { return status.Code(r.Err) }

func (c *call) do(ctx context.Context, conn *grpc.ClientConn) *Reply {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if c.cancelAfter > 0 {
		timer := time.AfterFunc(c.cancelAfter, cancel)
		defer timer.Stop()
	}
	reply := &Reply{}
	if c.stream {
		c.doStream(ctx, conn, reply)
		return reply
	}
	options := []grpc.CallOption{grpc.Header(&reply.Header), grpc.Trailer(&reply.Trailer)}
	if c.compressed {
		options = append(options, grpc.UseCompressor(gzip.Name))
	}
	var message []byte
	reply.Err = conn.Invoke(ctx, c.method, c.request, &message, options...)
	if reply.Err == nil {
		reply.Messages = [][]byte{message}
	}
	return reply
}

func (c *call) doStream(ctx context.Context, conn *grpc.ClientConn, reply *Reply) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	description := &grpc.StreamDesc{ServerStreams: true}
	stream, err := conn.NewStream(ctx, description, c.method)
	if err != nil {
		reply.Err = err
		return
	}
	if reply.Err = stream.SendMsg(c.request); reply.Err != nil {
		return
	}
	if reply.Err = stream.CloseSend(); reply.Err != nil {
		return
	}
	for {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			reply.Trailer = stream.Trailer()
			if !errors.Is(err, io.EOF) {
				reply.Err = err
			}
			return
		}
		if len(reply.Messages) == 0 {
			reply.Header, reply.Err = stream.Header()
		}
		reply.Messages = append(reply.Messages, message)
		if c.enough != nil && c.enough(reply.Messages) {
			return
		}
	}
}

// record turns a finished call into a step.
func (c *call) record(name string, reply *Reply) transcript.Step {
	step := transcript.Step{
		Name: name, Method: c.method, Required: c.required,
		Request: transcript.NewRequest(c.method, c.request),
		Status:  statusOf(reply.Err),
		EndedNS: time.Now().UnixNano(),
	}
	if c.codeOnly {
		step.Status = &transcript.Status{Code: step.Status.Code, Name: step.Status.Name}
		return step
	}
	step.Header, step.Trailer = transcript.Metadata(reply.Header), transcript.Metadata(reply.Trailer)
	for _, message := range reply.Messages {
		step.Replies = append(step.Replies, transcript.NewReply(c.method, message))
	}
	return step
}

func statusOf(err error) *transcript.Status {
	state := status.Convert(err)
	recorded := &transcript.Status{
		Code: int(state.Code()), Name: state.Code().String(), Message: state.Message(),
	}
	for _, detail := range state.Proto().GetDetails() {
		recorded.Details = append(recorded.Details, transcript.Detail{TypeURL: detail.TypeUrl, Value: detail.Value})
	}
	return recorded
}
