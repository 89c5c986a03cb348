module tenure.dev/cmd/tenure

go 1.26

require (
	github.com/rogpeppe/go-internal v1.16.0
	github.com/spf13/cobra v1.10.2
	tenure.dev v0.0.0
)
