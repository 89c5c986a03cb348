module tenure.dev/store/gcs

go 1.26.0

require (
	golang.org/x/oauth2 v0.37.0
	tenure.dev v0.0.0
	tenure.dev/storetest v0.0.0
)

require (
	cloud.google.com/go/compute/metadata v0.9.0 // indirect
	github.com/anishathalye/porcupine v1.3.1 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	tenure.dev => ../..
	tenure.dev/storetest => ../../storetest
)
