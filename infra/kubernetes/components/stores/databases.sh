# Runs once, on an empty volume. Each server has a role that owns only its databases.
psql --set=ON_ERROR_STOP=1 --username=postgres --set=prefect="$PREFECT_PASSWORD" --set=mlflow="$MLFLOW_PASSWORD" << 'SQL'
CREATE ROLE prefect LOGIN PASSWORD :'prefect';
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
REVOKE CONNECT ON DATABASE prefect, mlflow, mlflow_auth FROM PUBLIC;
SQL
