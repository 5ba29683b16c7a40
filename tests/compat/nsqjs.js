// Publishes three messages and reads them back, as the settings (JSON) on the command line say.
// Prints OK, or what went wrong.
const nsq = require("nsqjs");
const settings = JSON.parse(process.argv[2]);
const [host, port] = settings.address.split(":");
const bodies = ["small", "again and again ".repeat(2000), "ü".repeat(1000)];
const options = { ...settings.options };
if (options.tls) {
  const fs = require("fs");
  for (const name of ["ca", "key", "cert"]) if (options[name]) options[name] = fs.readFileSync(options[name]);
}

const fail = (what) => (error) => {
  console.log(`${what}: ${error && (error.message || error)}`);
  process.exit(1);
};

const writer = new nsq.Writer(host, Number(port), options);
writer.on("error", fail("writer"));
writer.on("ready", () =>
  writer.publish("events", bodies, (error) => {
    if (error) fail("publish")(error);
    const reader = new nsq.Reader("events", "people", { ...options, nsqdTCPAddresses: settings.address, maxInFlight: 10 });
    const got = [];
    reader.on("error", fail("reader"));
    reader.on("message", (message) => {
      got.push(message.body.toString());
      message.finish();
      if (got.length === bodies.length) {
        console.log(JSON.stringify(got) === JSON.stringify(bodies) ? "OK" : "other bodies");
        setTimeout(() => process.exit(0), 50);
      }
    });
    reader.connect();
  }),
);
writer.connect();
