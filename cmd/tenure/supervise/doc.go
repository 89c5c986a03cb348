// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package supervise runs a command that must not outlive a term: whatever
// happens to the process that holds the lock, the command and all that it
// started are dead before the term's deadline. It is the part of `tenure run`
// that keeps I7, released means stopped.
//
// Three processes take part:
//
//	tenure ──▶ watchdog ──▶ the command ──▶ its descendants
//
// The watchdog is tenure's own program, started again. It has a session of its
// own, so what stops or interrupts tenure's process group does not reach it,
// and it shrugs off TERM, INT, HUP and their like. Tenure tells it each new
// deadline through a pipe, as an instant of the clock that goes on in suspend.
// The command is in a session and process group of its own.
//
// Who kills the command, and when:
//
//	its main process exits        the watchdog ends what it left running
//	tenure asks (Kill)            the watchdog, at once
//	tenure dies, even by kill -9  the watchdog, at once: its pipe ends
//	tenure is frozen              the watchdog, at the deadline less the margin
//	the machine was suspended     the watchdog, first thing, if that has passed
//	the watchdog dies             the kernel ends the main process, tenure the rest
//	the watchdog is frozen        tenure wakes it with each renewal, the kernel
//	                              when tenure dies; at the deadline less half
//	                              the margin tenure kills it
//
// "The command" is the main process and every descendant, also those that left
// its process group or session: the watchdog and tenure are child subreapers,
// so on Linux orphans come to them and /proc names the rest. A main process that
// exits by itself takes its descendants with it: a daemon that it left behind
// would go on working after the lock is released.
//
// # What may survive
//
//   - Tenure and the watchdog both killed by kill -9, the second before it could
//     act on the death of the first (milliseconds): the kernel ends the main
//     process, its other descendants live on. The same while tenure is frozen
//     and the watchdog is killed, until tenure runs again. The watchdog goes by
//     another name than tenure, so that killing tenure by name spares it.
//   - Tenure and the watchdog both frozen, but the command not.
//   - A process of another user, or with privileges that the watchdog lacks: it
//     cannot be signalled. Nor does the kernel end such a main process with the
//     watchdog. [Proc.Wait] waits for it, the log names it.
//   - A process in uninterruptible sleep dies when the kernel lets it; Wait waits.
//   - What another service started at the command's request (a container
//     engine, systemd, cron, another host) is no descendant.
//   - After a suspend, or a pause of the whole machine or control group, the
//     command may run until the watchdog is scheduled, a few milliseconds.
//   - Where [Containment] returns a text, what that text says.
//
// # Terminals
//
// The command has tenure's standard input, output and error, and no other open
// file. It has no controlling terminal: it can read and write the terminal, but
// cannot open /dev/tty, and keys such as Ctrl-C signal tenure's group only. The
// caller forwards what it gets with [Proc.Signal]. Ctrl-Z freezes tenure, and
// a frozen tenure loses its term: the command is killed at the deadline.
package supervise
