module tenure.dev/store/etcd

go 1.26

require (
	go.etcd.io/etcd/api/v3 v3.6.8
	google.golang.org/grpc v1.81.1
	tenure.dev v0.0.0
	tenure.dev/storetest v0.0.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.26.3 // indirect
	golang.org/x/net v0.51.0 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.34.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260226221140-a57be14db171 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace (
	tenure.dev => ../..
	tenure.dev/storetest => ../../storetest
)
