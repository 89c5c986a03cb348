// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tenure.dev/internal/nearest"
)

// app is what all subcommands share.
type app struct {
	stdio
	output  string
	verbose bool
	// printed is set when the JSON document is on stdout: there is one at most.
	printed bool
	// lost is set when the answer could not be written.
	lost bool
	// stopped is the signal that ended an interrupted context.
	stopped atomic.Int32
}

const rootExample = `  # one active copy of a program, on one host
  tenure run --lock file:///var/lib/tenure/nightly.lock -- /usr/local/bin/nightly

  # who runs it
  tenure status --lock file:///var/lib/tenure/nightly.lock`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tenure",
		Short: "Run a command as the only active copy",
		Long: `Tenure elects one leader among copies of a program, and sees to it that no other copy works.

Exit codes: 0 done; 1 failed; 2 wrong use or configuration, nothing touched; 3 no such lock, nobody leads,
or --wait ran out; 4 refused for safety, or a record that cannot be read; 5 leadership lost (run --once);
otherwise, with run, the command's own, 128+n for signal n.`,
		Example:       rootExample,
		Args:          a.subcommand,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(a.err, cmd.UsageString())
			return wrongUse("no subcommand: name one of those above")
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return oneOf("-o", a.output, "text", "json")
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "text", "`text` or json")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "log more, each renewal too")
	root.SetFlagErrorFunc(flagError)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.AddCommand(a.runCommand(), a.initCommand(), a.statusCommand(), a.handoverCommand(), a.pauseCommand(),
		a.resumeCommand(), a.releaseCommand(), a.doctorCommand(), a.operatorCommand(), a.installCommand(), a.ungateCommand(),
		a.versionCommand(), a.completionCommand())
	root.SetHelpCommand(a.helpCommand())
	return root
}

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string, files stdio) int {
	a := &app{stdio: files}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.lost {
		return exitFailed
	}
	if err == nil {
		return 0
	}
	code, text := exitCode(err), message(err)
	if text != "" {
		fmt.Fprintln(a.err, "tenure: "+text)
	}
	if a.output == "json" && !a.printed && text != "" {
		a.printJSON(struct {
			Error    string `json:"error"`
			ExitCode int    `json:"exitCode"`
		}{text, code})
	}
	return code
}

// action makes a cobra run function: an error that carries no exit code
// happened while running.
func (a *app) action(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := f(cmd, args)
		var coded *codedError
		if err != nil && !errors.As(err, &coded) {
			return &codedError{a.codeOf(err), err}
		}
		return err
	}
}

// subcommand refuses what is no subcommand of the root, naming the nearest.
func (a *app) subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknownWord("subcommand", args[0], subcommands(cmd))
}

func subcommands(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Root().Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			names = append(names, c.Name())
		}
	}
	return names
}

func unknownWord(what, word string, known []string) error {
	hint := ""
	if near := nearest.Word(strings.ToLower(word), known); near != "" {
		hint = fmt.Sprintf("; the nearest is %q", near)
	}
	return wrongUse("the %s %q is not known%s; known are: %s", what, word, hint, strings.Join(known, ", "))
}

func oneOf(flag, value string, known ...string) error {
	for _, k := range known {
		if value == k {
			return nil
		}
	}
	return unknownWord("value of "+flag, value, known)
}

// noArgs refuses arguments where none are taken.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUse("%s takes no arguments, and was given %q: see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

func flagError(cmd *cobra.Command, err error) error {
	see := fmt.Sprintf("see %s --help", cmd.CommandPath())
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return wrongUse("%w: %s", err, see)
	}
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		return wrongUse("the flag -%s is not known: %s", unknown.GetSpecifiedName(), see)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	hint := "known are: --" + strings.Join(known, ", --")
	if near := nearest.Word(strings.ToLower(unknown.GetSpecifiedName()), known); near != "" {
		hint = "the nearest is --" + near
	}
	return wrongUse("the flag --%s is not known; %s: %s", unknown.GetSpecifiedName(), hint, see)
}

func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [subcommand]",
		Short: "Say how a subcommand is used",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownWord("subcommand", args[0], subcommands(cmd))
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell's completion script",
		Example: `  # bash, for this shell
  source <(tenure completion bash)

  # zsh, for all shells
  tenure completion zsh > "${fpath[1]}/_tenure"

  # fish, for all shells
  tenure completion fish > ~/.config/fish/completions/tenure.fish`,
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrongUse("name one shell: %s", strings.Join(shells, ", "))
			}
			return oneOf("the shell", args[0], shells...)
		},
		RunE: a.action(func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			default:
				return root.GenFishCompletion(a.out, true)
			}
		}),
	}
}
