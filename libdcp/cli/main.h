/* main: what every program does alike: options, --help, --version, errors, exit status,
 * signals, the streams. A program is a table and one line:
 *
 *     int main(int argc, char **argv) { return dcp_main(&program, argc, argv); }
 */
#ifndef DCP_CLI_MAIN_H
#define DCP_CLI_MAIN_H

#include "program.h"

/* The body of main: returns the exit status. */
int dcp_main(const struct dcp_program *program, int argc, char **argv);

#endif
