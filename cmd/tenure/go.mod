module tenure.dev/cmd/tenure

go 1.26

require (
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.9
	tenure.dev v0.0.0
)

require github.com/inconshreveable/mousetrap v1.1.0 // indirect
