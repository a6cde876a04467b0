package protocol

import _ "embed"

// OpenAPI is openapi.yaml: every call of the protocol, and of the reference control plane's admin side.
//
//go:embed openapi.yaml
var OpenAPI string
