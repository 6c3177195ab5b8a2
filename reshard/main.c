/* dcp-reshard: one checkpoint into another, in one process and bounded memory. */
#include "cli/main.h"
#include "verbs.h"

static const struct dcp_command *const commands[] = {
    &reshard_run,       &reshard_export,
    &reshard_repair,    &reshard_delta,
    &reshard_prune,     &reshard_tag,
    &reshard_pin,       &reshard_unpin,
    &reshard_gc,        &reshard_keygen,
    &reshard_sign_verb, &reshard_verify,
    &reshard_formats,   NULL,
};

static const struct dcp_program program = {
    .name = "dcp-reshard",
    .purpose = "bring a checkpoint to another world size, layout, dtype or format",
    .commands = commands,
};

int main(int argc, char **argv)
{
    return dcp_main(&program, argc, argv);
}
