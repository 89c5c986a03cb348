module tenure.dev/store/postgres

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	tenure.dev v0.0.0
	tenure.dev/storetest v0.0.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	golang.org/x/text v0.42.0 // indirect
)

replace (
	tenure.dev => ../..
	tenure.dev/storetest => ../../storetest
)
