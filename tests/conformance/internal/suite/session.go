package suite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/websocket"
)

// sessionTimeout bounds a session on a streaming URL.
const sessionTimeout = time.Minute

// The channels of the protocol v4.channel.k8s.io.
const (
	channelStdin = iota
	channelStdout
	channelStderr
	channelError
)

// outcome is what a session on a streaming URL gave.
type outcome struct {
	stdout, stderr, status string
	err                    error
}

func (o outcome) String() string {
	failure := ""
	if o.err != nil {
		failure = o.err.Error()
	}
	return fmt.Sprintf("stdout %q stderr %q status %q error %q", o.stdout, o.stderr, o.status, failure)
}

// session opens a streaming URL as a kubelet would for a client with
// websockets, sends the input, and reads until the other end is done or
// standard output holds what was waited for.
func session(url string, input []byte, awaited string) outcome {
	conn, err := dialStreaming(url)
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	if len(input) > 0 {
		if err := sendInput(conn, input); err != nil {
			return outcome{err: err}
		}
	}
	return receive(conn, awaited)
}

// repeatEvery is how long insist waits for an answer before it asks again.
const repeatEvery = time.Second

// insist is a session that repeats its input until it is answered, and keeps
// the first answer. A runtime may join a client's input to a running container
// before its output, and what the container says in between is lost: containerd
// starts to copy the input first.
func insist(url string, input []byte, awaited string) outcome {
	conn, err := dialStreaming(url)
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		for sendInput(conn, input) == nil {
			select {
			case <-answered:
				return
			case <-time.After(repeatEvery):
			}
		}
	}()
	result := receive(conn, awaited)
	if before, _, found := strings.Cut(result.stdout, awaited); found {
		result.stdout = before + awaited
	}
	return result
}

func sendInput(conn *websocket.Conn, input []byte) error {
	return websocket.Message.Send(conn, append([]byte{channelStdin}, input...))
}

// receive reads a session until the other end is done or standard output holds
// what was waited for.
func receive(conn *websocket.Conn, awaited string) outcome {
	var result outcome
	for {
		var frame []byte
		if err := websocket.Message.Receive(conn, &frame); err != nil {
			if !errors.Is(err, io.EOF) {
				result.err = err
			}
			return result
		}
		if len(frame) == 0 {
			continue
		}
		switch frame[0] {
		case channelStdout:
			result.stdout += string(frame[1:])
		case channelStderr:
			result.stderr += string(frame[1:])
		case channelError:
			result.status += string(frame[1:])
			return result
		}
		if awaited != "" && strings.Contains(result.stdout, awaited) {
			// Standard error of the same moment may or may not have come.
			result.stderr = ""
			return result
		}
	}
}

// forward sends bytes through a port-forward URL and returns what came back.
func forward(url string, input []byte) string {
	conn, err := dialStreaming(url)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	// Two channels for each port, data and errors; each begins with the port.
	const data, failure = 0, 1
	received := map[byte][]byte{}
	if err := websocket.Message.Send(conn, append([]byte{data}, input...)); err != nil {
		return err.Error()
	}
	for {
		var frame []byte
		if err := websocket.Message.Receive(conn, &frame); err != nil {
			break
		}
		if len(frame) > 0 {
			received[frame[0]] = append(received[frame[0]], frame[1:]...)
		}
		if len(received[data]) > 2 {
			break
		}
	}
	return fmt.Sprintf("data %q error %q", afterPort(received[data]), afterPort(received[failure]))
}

func afterPort(bytes []byte) []byte {
	if len(bytes) < 2 || binary.LittleEndian.Uint16(bytes) == 0 {
		return bytes
	}
	return bytes[2:]
}

func dialStreaming(url string) (*websocket.Conn, error) {
	config, err := websocket.NewConfig(strings.Replace(url, "http://", "ws://", 1), "http://localhost")
	if err != nil {
		return nil, err
	}
	config.Protocol = []string{"v4.channel.k8s.io"}
	conn, err := websocket.DialConfig(config)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(sessionTimeout))
}

// log reads a container's log once it is complete, without the times. A line
// of the log is "time stream tag text".
func (s *Scenario) log(pod *Pod, file string, complete func(lines []string) bool) string {
	deadline := time.Now().Add(sessionTimeout)
	for {
		data, err := os.ReadFile(filepath.Join(pod.config.LogDirectory, file))
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		if err != nil || len(data) == 0 {
			lines = nil
		}
		for i, line := range lines {
			if at, rest, ok := strings.Cut(line, " "); ok {
				if _, err := time.Parse(time.RFC3339Nano, at); err == nil {
					lines[i] = rest
				}
			}
		}
		if complete(lines) || time.Now().After(deadline) {
			// Both streams are written by their own reader: their order is chance.
			return strings.Join(byStream(lines), "\n")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func byStream(lines []string) []string {
	var stdout, rest []string
	for _, line := range lines {
		if strings.HasPrefix(line, "stdout ") {
			stdout = append(stdout, line)
		} else {
			rest = append(rest, line)
		}
	}
	return append(stdout, rest...)
}

// rotate renames a log as a kubelet does before it asks for a new one.
func (s *Scenario) rotate(pod *Pod, file string) {
	path := filepath.Join(pod.config.LogDirectory, file)
	if err := os.Rename(path, path+".1"); err != nil {
		s.Observe("rotate", err.Error())
	}
}
