# The image of your own agents: sealbus and your modules. From the top of the repository, after that of sealbus itself:
#   docker build -f deploy/container/worker.Dockerfile -t hello-agents:0.1.0 deploy/container
# What your handlers import, beside sealbus: a requirement file with hashes, and `RUN pip install --require-hashes -r`.
FROM sealbus:0.1.0
COPY agents.py /app/agents.py
ENV PYTHONPATH=/app
CMD ["run", "agents:app", "--metrics-host", "0.0.0.0", "--metrics-port", "9400"]
