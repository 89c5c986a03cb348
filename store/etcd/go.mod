module tenure.dev/store/etcd

go 1.26.0

require (
	go.etcd.io/etcd/api/v3 v3.7.0
	google.golang.org/grpc v1.82.1
	tenure.dev v0.0.0
	tenure.dev/storetest v0.0.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.29.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	go.opentelemetry.io/otel v1.44.0 // indirect
	go.opentelemetry.io/otel/sdk/metric v1.44.0 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	tenure.dev => ../..
	tenure.dev/storetest => ../../storetest
)
