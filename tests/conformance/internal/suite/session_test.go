package suite

import (
	"net/http/httptest"
	"testing"

	"golang.org/x/net/websocket"
)

// echoAfter answers each line of input with "got" and the line, but for the
// first ones: what a runtime does that joins the output too late.
func echoAfter(lost, times int) websocket.Handler {
	return func(conn *websocket.Conn) {
		for seen := 0; ; seen++ {
			var frame []byte
			if websocket.Message.Receive(conn, &frame) != nil {
				return
			}
			if seen < lost {
				continue
			}
			answer := []byte{channelStdout}
			for i := 0; i < times; i++ {
				answer = append(answer, "got "+string(frame[1:])...)
			}
			if websocket.Message.Send(conn, answer) != nil {
				return
			}
		}
	}
}

func TestInsistIsAnsweredWhereTheFirstAnswerIsLost(t *testing.T) {
	for _, c := range []struct {
		name        string
		lost, times int
	}{
		{"at once", 0, 1},
		{"first answer lost", 1, 1},
		{"two answers in one frame", 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(echoAfter(c.lost, c.times))
			defer server.Close()
			got := insist(server.URL, []byte("attached\n"), "got attached\n").String()
			const want = `stdout "got attached\n" stderr "" status "" error ""`
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestInsistKeepsWhatComesBeforeTheAnswer(t *testing.T) {
	server := httptest.NewServer(websocket.Handler(func(conn *websocket.Conn) {
		_ = websocket.Message.Send(conn, []byte("\x01noise\n"))
		echoAfter(0, 1)(conn)
	}))
	defer server.Close()
	got := insist(server.URL, []byte("attached\n"), "got attached\n").String()
	const want = `stdout "noise\ngot attached\n" stderr "" status "" error ""`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
