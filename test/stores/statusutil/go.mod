module go.opentelemetry.io/collector/internal/statusutil

go 1.26.0

require (
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260720211330-0afa2a65878a
	google.golang.org/grpc v1.85.0
)
