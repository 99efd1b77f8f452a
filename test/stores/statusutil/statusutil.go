// Package statusutil stands for a module of the collector that the module proxy does not
// have: how otlpreceiver tells errors over HTTP. What it receives does not go through it.
package statusutil

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NewStatusFromMsgAndHTTPCode returns a gRPC status for a text and an HTTP status.
func NewStatusFromMsgAndHTTPCode(text string, code int) *status.Status {
	of := codes.Unknown
	switch code {
	case 400:
		of = codes.InvalidArgument
	case 401:
		of = codes.Unauthenticated
	case 403:
		of = codes.PermissionDenied
	case 404:
		of = codes.Unimplemented
	case 429:
		of = codes.ResourceExhausted
	case 502, 503, 504:
		of = codes.Unavailable
	}
	return status.New(of, text)
}

// GetRetryInfo returns what a status says of when to come again, nil for nothing.
func GetRetryInfo(s *status.Status) *errdetails.RetryInfo {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info
		}
	}
	return nil
}
