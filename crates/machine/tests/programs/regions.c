// Enters as many parallel regions as its first argument says, once it has read a line.
// Prints the number of threads that took part.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int regions = argc > 1 ? atoi(argv[1]) : 0, threads = 0;
	char line[16];

	printf("ready\n");
	fflush(stdout);
	if (read(0, line, sizeof(line)) <= 0)
		return 1;
	for (int i = 0; i < regions; i++) {
		threads = 0;
#pragma omp parallel num_threads(2) reduction(+ : threads)
		threads++;
	}
	printf("%d\n", threads);
	fflush(stdout);
	while (read(0, line, sizeof(line)) > 0)
		;
	return 0;
}
