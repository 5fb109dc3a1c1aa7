package suite

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func execSync(s *Scenario) {
	container := s.Running("pod", &Pod{Name: "pod"}, &Container{Name: "main"})
	s.Exec("output", container, "echo out; echo err >&2", 5, Required())
	s.Exec("exit-code", container, "exit 3", 5)
	s.Exec("killed", container, "kill -9 $$", 5)
	s.Exec("no-output", container, ":", 0)
	s.Exec("binary-output", container, `printf '\000\001\377\200\r\n\033'; printf '\376' >&2`, 5)
	s.Exec("timeout", container, "/bin/busybox sleep 60", 1)
	s.Exec("after-timeout", container, "echo still here", 5)
	s.Call("no-such-command", methodExecSync, &runtime.ExecSyncRequest{
		ContainerId: container.id, Cmd: []string{"/no/such/command"}, Timeout: 5,
	})
	s.Call("empty-command", methodExecSync, &runtime.ExecSyncRequest{ContainerId: container.id, Timeout: 5})
	s.Call("negative-timeout", methodExecSync, &runtime.ExecSyncRequest{
		ContainerId: container.id, Cmd: shell("exit 0"), Timeout: -1,
	})
	s.Call("non-utf8-argument", methodExecSync, &runtime.ExecSyncRequest{
		ContainerId: container.id, Cmd: []string{"/bin/busybox", "echo", "tab\there"}, Timeout: 5,
	})
}

func execSyncLarge(s *Scenario) {
	container := s.Running("pod", &Pod{Name: "pod"}, &Container{Name: "main"})
	for _, size := range []int{16 << 10, 64<<10 + 1, 1 << 20} {
		script := fmt.Sprintf("/bin/busybox yes 0123456789abcde | /bin/busybox head -c %d", size)
		answer := s.Exec("bytes-"+strconv.Itoa(size), container, script, 20)
		s.Observe("sum-"+strconv.Itoa(size), fmt.Sprintf("%x", sha256.Sum256(answer.Stdout)))
	}
}

func streaming(s *Scenario) {
	pod := &Pod{Name: "pod"}
	echo := willing("while read line; do echo got $line; echo note >&2; done")
	container := s.Running("pod", pod, &Container{Name: "main", Command: echo, Stdin: true})

	exec := &runtime.ExecResponse{}
	into(s.Call("exec", runtime.RuntimeService_Exec_FullMethodName, &runtime.ExecRequest{
		ContainerId: container.id, Cmd: shell("echo out; echo err >&2; exit 5"), Stdout: true, Stderr: true,
	}, Required()), exec)
	s.Observe("exec-session", session(exec.Url, nil, "").String())
	s.Observe("exec-session-token-used-up", session(exec.Url, nil, "").String())

	withInput := &runtime.ExecResponse{}
	into(s.Call("exec-with-input", runtime.RuntimeService_Exec_FullMethodName, &runtime.ExecRequest{
		ContainerId: container.id, Cmd: shell("read line; echo got $line"), Stdin: true, Stdout: true, Stderr: true,
	}, Required()), withInput)
	s.Observe("exec-with-input-session", session(withInput.Url, []byte("hello\n"), "").String())

	attach := &runtime.AttachResponse{}
	into(s.Call("attach", runtime.RuntimeService_Attach_FullMethodName, &runtime.AttachRequest{
		ContainerId: container.id, Stdin: true, Stdout: true, Stderr: true,
	}, Required()), attach)
	s.Observe("attach-session", insist(attach.Url, []byte("attached\n"), "got attached\n").String())

	s.Call("exec-tty-and-stderr", runtime.RuntimeService_Exec_FullMethodName, &runtime.ExecRequest{
		ContainerId: container.id, Cmd: shell("exit 0"), Tty: true, Stdout: true, Stderr: true,
	})
	s.Call("exec-no-streams", runtime.RuntimeService_Exec_FullMethodName, &runtime.ExecRequest{
		ContainerId: container.id, Cmd: shell("exit 0"),
	})
	portForward(s, pod)
}

// portForward sends a line to a listener on the host, which a pod in the
// host's network reaches as its own.
func portForward(s *Scenario, pod *Pod) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("no loopback listener: " + err.Error())
	}
	defer listener.Close()
	go echoOnce(listener)
	port := listener.Addr().(*net.TCPAddr).Port
	answer := &runtime.PortForwardResponse{}
	// The port is not named in the request: it differs between runs. The
	// websocket form of the call takes it from the request, so ask quietly
	// for one that has it and record one that has not.
	s.Call("port-forward", runtime.RuntimeService_PortForward_FullMethodName,
		&runtime.PortForwardRequest{PodSandboxId: pod.id, Port: []int32{8080, 443}}, Required())
	request := &runtime.PortForwardRequest{PodSandboxId: pod.id, Port: []int32{int32(port)}}
	if err := s.suite.quietly(s.ctx, runtime.RuntimeService_PortForward_FullMethodName, request, answer); err != nil {
		s.Observe("port-forward-session", err.Error())
		return
	}
	s.Observe("port-forward-session", forward(answer.Url, []byte("ping\n")))
}

func echoOnce(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	buffer := make([]byte, 64)
	n, err := conn.Read(buffer)
	if err == nil {
		_, _ = conn.Write([]byte("echo " + string(buffer[:n])))
	}
}

func logs(s *Scenario) {
	pod := &Pod{Name: "pod"}
	script := "echo first; echo to stderr >&2; printf 'no newline'"
	container := s.Running("short", pod, &Container{Name: "short", Command: briefly(script)})
	s.AwaitExit("short-exited", container)
	s.Observe("short-log", s.log(pod, "short.log", func(lines []string) bool { return len(lines) >= 3 }))
	s.Call("reopen-after-exit", runtime.RuntimeService_ReopenContainerLog_FullMethodName,
		&runtime.ReopenContainerLogRequest{ContainerId: container.id})

	talker := s.Create("create-talker", pod, &Container{
		Name: "talker", Command: willing("while read line; do echo $line; done"), Stdin: true,
	})
	s.Start("start-talker", talker)
	s.say(talker, "before rotation\n")
	s.Observe("talker-log", s.log(pod, "talker.log", func(lines []string) bool { return len(lines) >= 1 }))
	s.rotate(pod, "talker.log")
	s.Call("reopen", runtime.RuntimeService_ReopenContainerLog_FullMethodName,
		&runtime.ReopenContainerLogRequest{ContainerId: talker.id}, Required())
	s.say(talker, "after rotation\n")
	s.Observe("talker-log-after-rotation", s.log(pod, "talker.log", func(lines []string) bool { return len(lines) >= 1 }))
	s.Observe("talker-log-rotated", s.log(pod, "talker.log.1", func([]string) bool { return true }))

	long := s.Create("create-long", pod, &Container{
		Name: "long", Command: briefly("/bin/busybox yes x | /bin/busybox tr -d '\\n' | /bin/busybox head -c 40000"),
	})
	s.Start("start-long", long)
	s.AwaitExit("long-exited", long)
	whole := s.log(pod, "long.log", func(lines []string) bool {
		total := 0
		for _, line := range lines {
			total += strings.Count(line, "x")
		}
		return total == 40000
	})
	// CRI-O divides a long line where it happened to be read.
	s.Observe("long-log", strings.ReplaceAll(whole, "\nstdout P ", ""))
}

// say writes to a container's standard input by an attach session.
func (s *Scenario) say(container *Container, line string) {
	answer := &runtime.AttachResponse{}
	request := &runtime.AttachRequest{ContainerId: container.id, Stdin: true, Stdout: true}
	if err := s.suite.quietly(s.ctx, runtime.RuntimeService_Attach_FullMethodName, request, answer); err != nil {
		return
	}
	session(answer.Url, []byte(line), line)
}

func deadlineAndCancel(s *Scenario) {
	container := s.Running("pod", &Pod{Name: "pod"}, &Container{Name: "main"})
	limit := awaitTimeout
	if strings.HasPrefix(s.suite.runtime, "cri-o ") {
		// It lets a command run on whose caller is gone: that one is still there
		// is what is seen, and to wait longer shows no more.
		limit = 10 * time.Second
	}
	gone := func(step, mark string) {
		s.Observe(step, s.awaitWithin(limit, func() string {
			return strings.TrimSpace(s.Peek(container, "/bin/busybox ps | /bin/busybox grep -c '[s]leep "+mark+"'"))
		}, "0"))
	}
	s.Exec("deadline", container, "exec /bin/busybox sleep 1111", 0, Within(500*time.Millisecond), CodeOnly())
	gone("process-after-deadline", "1111")
	s.Exec("cancel", container, "exec /bin/busybox sleep 2222", 0, CancelAfter(500*time.Millisecond), CodeOnly())
	gone("process-after-cancel", "2222")
	s.Exec("after", container, "echo still here", 5, Required())
	// A runtime may first send what nobody had asked for until now.
	s.Stream("events-cancelled", runtime.RuntimeService_GetContainerEvents_FullMethodName, &runtime.GetEventsRequest{}, nil,
		CancelAfter(200*time.Millisecond), CodeOnly())
	s.Stream("events-deadline", runtime.RuntimeService_GetContainerEvents_FullMethodName, &runtime.GetEventsRequest{}, nil,
		Within(200*time.Millisecond), CodeOnly())
	s.Call("expired-before-sending", runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{}, Within(-time.Second), CodeOnly())
	slow := &Container{Name: "slow", Command: shell("trap '' TERM; : >/deaf; while :; do /bin/busybox sleep 0.1; done")}
	s.Create("create-slow", container.pod, slow)
	s.Start("start-slow", slow)
	// Before that it is the runtime's program yet, which ends when it is asked to.
	s.Observe("slow-is-deaf", s.await(func() string {
		return strings.TrimSpace(s.Peek(slow, "[ -e /deaf ] && echo deaf"))
	}, "deaf"))
	s.Call("stop-cancelled", methodStop, &runtime.StopContainerRequest{ContainerId: slow.id, Timeout: 5},
		CancelAfter(500*time.Millisecond), CodeOnly())
	s.Status("status-after-cancelled-stop", slow)
	s.Call("stop", methodStop, &runtime.StopContainerRequest{ContainerId: slow.id}, Required())
}

// awaitTimeout bounds what ends by itself, on a busy machine too.
const awaitTimeout = time.Minute

// await repeats look until it gives what is wanted or awaitTimeout has passed,
// and returns what it saw last.
func (s *Scenario) await(look func() string, wanted string) string {
	return s.awaitWithin(awaitTimeout, look, wanted)
}

// awaitWithin is await with another limit.
func (s *Scenario) awaitWithin(limit time.Duration, look func() string, wanted string) string {
	deadline := time.Now().Add(limit)
	for {
		seen := look()
		if seen == wanted || time.Now().After(deadline) || s.ctx.Err() != nil {
			return seen
		}
		time.Sleep(100 * time.Millisecond)
	}
}
