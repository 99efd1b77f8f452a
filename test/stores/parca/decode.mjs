// Writes the WriteRawRequest on standard input as JSON. It may have no field that Parca
// does not know.
import { WriteRawRequest } from "@parca/client/dist/parca/profilestore/v1alpha1/profilestore";
import { readFileSync } from "node:fs";

const request = WriteRawRequest.fromBinary(readFileSync(0), { readUnknownField: "throw" });
process.stdout.write(JSON.stringify(WriteRawRequest.toJson(request)));
