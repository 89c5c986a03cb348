module tenure.dev/storetest

go 1.26

require (
	github.com/anishathalye/porcupine v1.3.1
	tenure.dev v0.0.0
)

replace tenure.dev => ../
